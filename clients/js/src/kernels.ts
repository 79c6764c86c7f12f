/** Kernels at a steady pace: values are 0, or between 1e-100 and 1e60 in size. */
import { need } from "./errors.js";
import { type Bag, has, isNumber } from "./header.js";

/** A function of two points that begin at some places of two arrays. */
export type Between = (x: Float64Array, i: number, y: Float64Array, j: number) => number;
/** Checks the number of columns that it will be given. */
export type Kernel = (columns: number) => Between;

const LEAST = 1e-100;
const MOST = 1e60;
const DEAD = 1500;
const LARGE_ORDER = 20;
const DEEPEST = 64;

const TYPES = [
  "RBF", "Matern", "RationalQuadratic", "Linear", "Constant", "Categories", "Sum", "Product", "ContextAction", "Columns", "Auto",
];

/** Count the parts of a description and refuse numbers at which a kernel could fail. */
export function checkKernel(description: unknown, depth = 1): number {
  need(depth <= DEEPEST, "kernels nested too deep");
  need(Array.isArray(description) || TYPES.includes((description as Bag)["type"] as string), "a kernel of an unknown type");
  let parts = 1;
  for (const value of Object.values(description as object)) {
    if (typeof value === "object" && value !== null) parts += checkKernel(value, depth + 1);
    else if (typeof value === "number" && value !== 0) {
      need(Math.abs(value) >= 1e-30 && Math.abs(value) <= 1e30, "the numbers of a kernel must lie in 1e-30 to 1e30");
    }
  }
  if (!Array.isArray(description) && has(description as Bag, "nu")) {
    const order = (description as Bag)["nu"];
    const half = isNumber(order) && order > 0 && order < LARGE_ORDER && (order - 0.5) % 1 === 0;
    need(order === "inf" || half, "devices take Matern kernels of half-integer order below 20 only");
  }
  return parts;
}

function tame(value: number): number {
  const clipped = Math.max(-MOST, value <= MOST ? value : MOST);
  return Math.abs(clipped) >= LEAST ? clipped : 0;
}

/** The fields of a description: those that are known, and no others. */
function fields(description: Bag, known: string[], needed: string[] = []): void {
  for (const name of Object.keys(description)) need(name === "type" || known.includes(name), `no field ${name}`);
  for (const name of needed) need(has(description, name), `a kernel needs ${name}`);
}

function positive(description: Bag, name: string, otherwise = 1): number {
  const value = has(description, name) ? description[name] : otherwise;
  need(isNumber(value) && value > 0 && Number.isFinite(value), `${name} must be positive`);
  return value;
}

/** Everything that a kernel is made of. */
export function kernel(description: unknown): Kernel {
  need(typeof description === "object" && description !== null && !Array.isArray(description), "a kernel");
  const told = description as Bag;
  switch (told["type"]) {
    case "RBF":
      fields(told, ["lengthscale", "variance"]);
      return stationary(told, false, gaussian);
    case "Matern": {
      fields(told, ["nu", "lengthscale", "variance"]);
      const order = has(told, "nu") ? told["nu"] : 2.5;
      if (order === "inf") return stationary(told, false, gaussian);
      return stationary(told, true, matern(positive(told, "nu", 2.5)));
    }
    case "RationalQuadratic": {
      fields(told, ["alpha", "lengthscale", "variance"]);
      const alpha = positive(told, "alpha");
      const rate = 0.5 / alpha;
      return stationary(told, false, (r) =>
        alpha === 1 ? 1 / (r * rate + 1) : Math.exp(Math.log1p(r * rate) * -alpha),
      );
    }
    case "Linear": {
      fields(told, ["variance", "bias"]);
      const variance = positive(told, "variance");
      const bias = has(told, "bias") ? told["bias"] : 0;
      need(isNumber(bias) && bias >= 0 && Number.isFinite(bias), "bias");
      return (columns) => (x, i, y, j) => {
        let sum = 0;
        for (let c = 0; c < columns; c++) sum += x[i + c]! * y[j + c]!;
        return tame(sum * variance + bias);
      };
    }
    case "Constant": {
      fields(told, ["variance"]);
      const value = tame(positive(told, "variance"));
      return () => () => value;
    }
    case "Categories": {
      fields(told, ["similarity", "variance"]);
      const similarity = has(told, "similarity") ? told["similarity"] : 0;
      need(isNumber(similarity) && similarity >= 0 && similarity <= 1, "similarity");
      const variance = positive(told, "variance");
      const differ = (1 - similarity) * variance;
      return (columns) => (x, i, y, j) => {
        let equal = 1;
        for (let c = 0; c < columns; c++) equal &= x[i + c] === y[j + c] ? 1 : 0;
        return tame(equal * differ + (variance - differ));
      };
    }
    case "Sum":
    case "Product": {
      fields(told, ["left", "right"], ["left", "right"]);
      const [left, right] = [kernel(told["left"]), kernel(told["right"])];
      const sum = told["type"] === "Sum";
      return (columns) => {
        const [one, two] = [left(columns), right(columns)];
        return (x, i, y, j) => {
          const [a, b] = [one(x, i, y, j), two(x, i, y, j)];
          return tame(sum ? a + b : a * b);
        };
      };
    }
    case "ContextAction": {
      fields(told, ["context", "action", "context_dimension"], ["context", "action", "context_dimension"]);
      const [context, action, split] = [kernel(told["context"]), kernel(told["action"]), told["context_dimension"]];
      need(Number.isSafeInteger(split) && (split as number) >= 1, "context_dimension");
      return (columns) => {
        const at = split as number;
        need(columns > at, "rows are the context followed by the action");
        const [one, two] = [context(at), action(columns - at)];
        return (x, i, y, j) => tame(one(x, i, y, j) * two(x, i + at, y, j + at));
      };
    }
    case "Columns": {
      fields(told, ["kernel", "columns"], ["kernel", "columns"]);
      const inner = kernel(told["kernel"]);
      const chosen = told["columns"] as number[];
      need(Array.isArray(chosen) && chosen.length > 0 && new Set(chosen).size === chosen.length, "columns");
      need(chosen.every((column) => Number.isSafeInteger(column) && column >= 0), "columns");
      return (columns) => {
        need(Math.max(...chosen) < columns, "a column that is not there");
        const of = inner(chosen.length);
        const take = (points: Float64Array, start: number) => Float64Array.from(chosen, (c) => points[start + c]!);
        return (x, i, y, j) => tame(of(take(x, i), 0, take(y, j), 0));
      };
    }
  }
  need(told["type"] === "Auto" && Object.keys(told).length === 1, "an unknown kernel");
  return () => need(false, "this kernel has no values of its own") as never;
}

function gaussian(squared: number): number {
  return Math.exp(squared * -0.5);
}

/** `exp(-z) sum_i b_i z^i`, `z = sqrt(2 nu) r`. */
function matern(nu: number): (r: number) => number {
  const order = nu - 0.5;
  const scale = Math.sqrt(2 * order + 1);
  // b_i = p! (2p - i)! 2^i / ((2p)! (p - i)! i!), each once rounded: exact up to 2^53 of both terms.
  const coefficients: number[] = [];
  let [top, bottom] = [1n, 1n];
  const p = BigInt(order);
  for (let i = 0n; i <= p; i++) {
    coefficients.push(quotient(top, bottom));
    top *= 2n * (p - i);
    bottom *= (2n * p - i) * (i + 1n);
  }
  return (r) => {
    const z = Math.min(r * scale, DEAD);
    let sum = coefficients[order]!;
    for (let i = order - 1; i >= 0; i--) sum = sum * z + coefficients[i]!;
    return Math.exp(-z) * sum;
  };
}

/** The quotient of two whole numbers, at most 1, right to the last bit or the one before it. */
function quotient(top: bigint, bottom: bigint): number {
  return top ? Number((top << 120n) / bottom) / 2 ** 120 : 0;
}

/** Of the distance, or of its square, held between the ends at which nothing changes any more. */
function stationary(told: Bag, root: boolean, shape: (r: number) => number): Kernel {
  const variance = positive(told, "variance");
  const given = has(told, "lengthscale") ? told["lengthscale"] : 1;
  const many = Array.isArray(given);
  const scales = (many ? given : [given]) as number[];
  need(scales.length > 0 && scales.every((scale) => isNumber(scale) && scale > 0 && Number.isFinite(scale)), "lengthscale");
  const [nearest, farthest] = ends(shape, variance);
  return (columns) => {
    need(!many || scales.length === columns, "one lengthscale for each column");
    return (x, i, y, j) => {
      let sum = 0;
      for (let c = 0; c < columns; c++) {
        const scale = scales[many ? c : 0]!;
        const difference = x[i + c]! / scale - y[j + c]! / scale;
        sum += difference * difference;
      }
      const distance = root ? Math.sqrt(sum) : sum;
      return shape(Math.min(Math.max(distance, nearest), farthest)) * variance;
    };
  };
}

/** Up to where a shape is 1 to the bit, and a first place at which the kernel is below `LEAST`. */
function ends(shape: (r: number) => number, variance: number): [number, number] {
  const first = (low: number, changed: (r: number) => boolean, most: number, steps: number): [number, number] => {
    let before = low;
    let after = low;
    while (!changed(after) && after < most) [before, after] = [after, 2 * after];
    for (let i = 0; i < steps; i++) {
      const middle = before + (after - before) / 2;
      if (changed(middle)) after = middle;
      else before = middle;
    }
    return [before, after];
  };
  const [nearest] = first(2 ** -200, (r) => shape(r) !== 1, 1, 60);
  const dead = (r: number) => shape(r) * variance < LEAST;
  const [, farthest] = first(2 ** -200, dead, 2 ** 899, 10);
  return [nearest, dead(farthest) ? farthest : Infinity];
}
