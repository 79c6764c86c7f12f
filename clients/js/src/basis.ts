/** Coordinates of pairs (context, action): pivots of a kernel, or products of two factors. */
import { need } from "./errors.js";
import { type Arrays, type Bag, type Numbers, field, fits, isBag, settled, taken } from "./header.js";
import { type Between, type Kernel, checkKernel, kernel } from "./kernels.js";

export type Row = Float64Array;

/** `matrix^T row`, one column after the other as they are stored. */
export function times(row: Row, matrix: Numbers): Row {
  const columns = matrix.shape[1]!;
  const data = matrix.data;
  const out = new Float64Array(columns);
  let place = 0;
  for (let i = 0; i < row.length; i++) {
    const factor = row[i]!;
    for (let j = 0; j < columns; j++) out[j] = out[j]! + factor * data[place++]!;
  }
  return out;
}

export function product(left: Numbers, right: Numbers): Numbers {
  const [rows, inner] = left.shape as [number, number];
  const columns = right.shape[1]!;
  const data = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i++) data.set(times(left.data.subarray(i * inner, (i + 1) * inner), right), i * columns);
  return { shape: [rows, columns], data };
}

function settle(row: Row): Row {
  for (let i = 0; i < row.length; i++) row[i] = settled(row[i]!);
  return row;
}

export interface Actions {
  count: number;
  dimension: number;
  /** The rows of fixed actions; null where every context brings its own. */
  rows: Row | null;
  names: string[] | null;
}

/** Numbers of a context that are its own, not its actions'. */
export function own(actions: Actions, contextDimension: number): number {
  return actions.rows ? contextDimension : contextDimension - actions.count * actions.dimension;
}

export function features(actions: Actions, context: Row, action: number): Row {
  const { count, dimension } = actions;
  const start = action * dimension;
  if (actions.rows) return actions.rows.slice(start, start + dimension);
  const before = context.length - count * dimension;
  return context.slice(before + start, before + start + dimension);
}

export interface Basis {
  /** Coordinates, and numbers in a row that weights belong to. */
  rank: number;
  width: number;
  parts: [number, number];
  /** Rows of some actions of one context. */
  rows(context: Row, actions: number[]): Row[];
  coordinates(row: Row): Row;
  /** What coordinates leave out of a pair, as a variance. */
  residual(context: Row, action: number, coordinates: Row): number;
  /** `v(w)^T draws` of all actions. */
  values(draws: Numbers): (context: Row) => Row[];
  /** `T A`. */
  whitening(matrix: Numbers): Numbers;
  feasible(draws: number, whitened: number): boolean;
}

const NUMBERS = 2 ** 23;
const WORK = 2 ** 27;
const PRODUCTS = 2 ** 32;
const WIDEST = 2 ** 12;

export function basisOf(header: Bag, arrays: Arrays, actions: Actions, contextDimension: number): Basis {
  const columns = own(actions, contextDimension);
  need(columns >= 0, "contexts are too short for their actions");
  const parts = checkKernel(field(header, "kernel"));
  return "span" in header
    ? productBasis(header["span"] as Bag, arrays, actions, columns)
    : kernelBasis(header["kernel"], arrays, actions, columns, parts);
}

function kernelBasis(told: unknown, arrays: Arrays, actions: Actions, columns: number, parts: number): Basis {
  const pivots = taken(arrays, "pivots", -1, -1);
  const [count, width] = pivots.shape as [number, number];
  const transform = taken(arrays, "transform", count, -1);
  need(width === columns + actions.dimension, "pivots, contexts and actions do not fit");
  const made: Kernel = kernel(told);
  let between: Between | undefined;
  const pair = (context: Row, action: number): Row => {
    const row = new Float64Array(width);
    row.set(context.subarray(0, columns));
    row.set(features(actions, context, action), columns);
    return row;
  };
  const rows = (context: Row, chosen: number[]): Row[] => {
    const of = (between ??= made(width));
    return chosen.map((action) => {
      const point = pair(context, action);
      const row = new Float64Array(count);
      for (let j = 0; j < count; j++) row[j] = of(point, 0, pivots.data, j * width);
      return row;
    });
  };
  const rank = transform.shape[1]!;
  return {
    rank,
    width: count,
    parts: [parts, parts],
    rows,
    coordinates: (row) => settle(times(row, transform)),
    residual: (context, action, v) => {
      const point = pair(context, action);
      const of = (between ??= made(width));
      return Math.max(of(point, 0, point, 0) - v.reduce((sum, each) => sum + each * each, 0), 0);
    },
    values: (draws) => {
      const weights = product(transform, draws);
      const all = [...Array(actions.count).keys()];
      return (context) => rows(context, all).map((row) => times(row, weights));
    },
    whitening: (matrix) => {
      const joined = product(transform, matrix);
      return { shape: joined.shape, data: settle(joined.data) };
    },
    feasible: (draws, whitened) => {
      const values = actions.count * count * parts;
      const widest = Math.max(draws, rank, whitened, count, width);
      return (
        widest <= WIDEST &&
        actions.count * widest <= NUMBERS &&
        values * (width + 8) <= WORK &&
        values * widest <= PRODUCTS
      );
    },
  };
}

interface Factor {
  columns: number;
  width: number;
  pivots: [number, number];
  of(row: Row): Row;
}

const FARTHEST_SCORE = 4;
const MOST_FEATURE = 1e35;
const MOST_INDICATORS = 1 << 11;
const clip = (value: number, most: number): number => Math.min(Math.max(value, -most), most);

export function identity(count: number): Numbers {
  need(count <= MOST_INDICATORS, "it leaves out an array that is too large");
  const data = new Float64Array(count * count);
  for (let i = 0; i < count; i++) data[i * (count + 1)] = 1;
  return { shape: [count, count], data };
}

function factor(told: unknown, arrays: Arrays, side: string, columns: number): Factor {
  const get = (name: string) => arrays.get(`span.${side}.${name}`);
  for (const name of arrays.keys()) {
    if (name.startsWith(`span.${side}.`)) {
      const known = ["centre", "rate", "axes", "pivots", "transform", "offset"];
      need(known.includes(name.slice(side.length + 6)), "the parts of a factor do not fit");
    }
  }
  const nothing: Numbers = { shape: [0, 0], data: new Float64Array(0) };
  const none: Numbers = { shape: [0], data: new Float64Array(0) };
  const constant = !get("pivots") && !get("transform") && !get("offset");
  const transform = constant ? nothing : get("transform");
  const offset = constant ? none : get("offset");
  need(transform && offset, "a factor lacks an array");
  const pivots = constant ? nothing : (get("pivots") ?? identity(transform.shape[0]!));
  const centre = get("centre") ?? (columns ? undefined : none);
  const rate = get("rate") ?? (columns ? undefined : none);
  need(centre && rate, "a factor lacks an array");
  const axes = get("axes");
  const turned = axes ? axes.shape[axes.shape.length - 1]! : columns;
  const count = transform.shape[0]!;
  const features = transform.shape[transform.shape.length - 1]!;
  fits(centre, columns);
  fits(rate, columns);
  if (axes) fits(axes, columns, turned);
  fits(transform, count, features);
  fits(pivots, count, features ? turned : 0);
  fits(offset, features);
  const made = kernel(told);
  let between: Between | undefined;
  return {
    columns,
    width: features + 1,
    pivots: pivots.shape as [number, number],
    of: (row) => {
      const out = new Float64Array(features + 1);
      out[0] = 1;
      if (!features) return out;
      const of = (between ??= made(turned));
      let scores: Row = row.map((x, i) => settled(clip((x - centre.data[i]!) * rate.data[i]!, FARTHEST_SCORE)));
      if (axes) scores = settle(times(scores, axes));
      const values = new Float64Array(count);
      for (let j = 0; j < count; j++) values[j] = of(scores, 0, pivots.data, j * turned);
      times(values, transform).forEach((value, i) => {
        out[i + 1] = settled(clip(value - offset.data[i]!, MOST_FEATURE));
      });
      return out;
    },
  };
}

function indices(arrays: Arrays, name: string, width: number): number[] {
  const found = [...taken(arrays, name, -1).data];
  need(found.every((i) => Number.isInteger(i) && i >= 0 && i < width), "a product of features that are not there");
  return found;
}

function productBasis(kernels: Bag, arrays: Arrays, actions: Actions, columns: number): Basis {
  need(Object.keys(kernels).sort().join() === "action,context", "a span has context and action");
  need(isBag(kernels["context"]) && isBag(kernels["action"]), "a span has two kernels");
  const parts: [number, number] = [checkKernel(kernels["context"]), checkKernel(kernels["action"])];
  const context = factor(kernels["context"], arrays, "context", columns);
  const action = factor(kernels["action"], arrays, "action", actions.dimension);
  const left = indices(arrays, "span.left", context.width);
  const right = indices(arrays, "span.right", action.width);
  need(left.length === right.length, "products do not fit their factors");
  const rank = left.length;
  const work = (each: Factor, many: number) => each.pivots[0] * (each.pivots[1] + 8) * many;
  const turned = (each: Factor) => each.columns * each.pivots[1] + each.pivots[0] * each.width;
  const sides = (each: Factor) => [each.columns, each.width, ...each.pivots];
  const fit = (rank: number, width: number): boolean => {
    const widest = Math.max(rank, width, ...sides(context), ...sides(action));
    return (
      widest <= WIDEST &&
      actions.count * widest <= NUMBERS &&
      work(context, parts[0]) + actions.count * work(action, parts[1]) <= WORK &&
      turned(context) + actions.count * (turned(action) + rank * width) <= PRODUCTS
    );
  };
  need(fit(1, 1), "the bundle asks for more work than a device should do", "too-much-work");
  const table = actions.rows ? [...Array(actions.count).keys()].map((i) => action.of(features(actions, new Float64Array(0), i))) : null;
  const rows = (given: Row, chosen: number[]): Row[] => {
    const u = context.of(given.slice(0, columns));
    return chosen.map((number) => {
      const z = table ? table[number]! : action.of(features(actions, given, number));
      const row = new Float64Array(rank);
      for (let i = 0; i < rank; i++) row[i] = settled(u[left[i]!]! * z[right[i]!]!);
      return row;
    });
  };
  return {
    rank,
    width: rank,
    parts,
    rows,
    coordinates: (row) => row,
    residual: () => 0,
    values: (draws) => {
      const many = draws.shape[1]!;
      const all = [...Array(actions.count).keys()];
      if (!table) return (given) => rows(given, all).map((row) => times(row, draws));
      // sum_j weights_ij z_j(x), a row for each i: then the law of a context is one product.
      const brackets: Numbers = {
        shape: [context.width, actions.count * many],
        data: new Float64Array(context.width * actions.count * many),
      };
      // Of equal products the last one counts, as an assignment would have it.
      const place = new Map(left.map((i, at) => [i * action.width + right[at]!, at]));
      const { data } = brackets;
      for (const at of place.values()) {
        let to = left[at]! * actions.count * many;
        for (const z of table) {
          const factor = z[right[at]!]!;
          const from = at * many;
          for (let d = 0; d < many; d++, to++) data[to] = data[to]! + factor * draws.data[from + d]!;
        }
      }
      settle(data);
      return (given) => {
        const flat = times(context.of(given.slice(0, columns)), brackets);
        return all.map((x) => flat.subarray(x * many, (x + 1) * many));
      };
    },
    whitening: (matrix) => matrix,
    feasible: (draws, whitened) => {
      const brackets = context.width * Math.max(actions.count, action.width) * draws;
      return (
        fit(rank, Math.max(draws, rank, whitened)) &&
        brackets <= NUMBERS &&
        brackets * action.width <= PRODUCTS
      );
    },
  };
}
