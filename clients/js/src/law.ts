/** How to play: a public law on the actions that no test has ruled out. */
import type { Basis, Row } from "./basis.js";
import { times } from "./basis.js";
import { dot } from "./directions.js";
import { need } from "./errors.js";
import { type Arrays, type Bag, type Numbers, field, number, settled, taken, whole } from "./header.js";
import { type Limits, both, limitsOf, orElse } from "./limits.js";

type Test = (context: Row, rows: Row[]) => boolean[];

export interface Conduct {
  /** The probability of each action. */
  probabilities(context: Row): Row;
  /** The law where a context is no row of numbers. */
  unknown: Row;
  passes: number;
  draws: number;
  limits: Limits | null;
}

/** What is taken off the score of an action that is not active: more than any score. */
const RULED_OUT = 1e300;

const first = (values: ArrayLike<number>): number => {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i]! > values[best]!) best = i;
  return best;
};

export function conductOf(told: Bag, arrays: Arrays, basis: Basis, count: number): Conduct {
  const told_law = told["law"] as Bag;
  const told_tests = told["tests"] as Bag[];
  const size = (bag: Bag, name: string) => settled(number(field(bag, name), name, 0, 1e60));
  const kind = field(told_law, "kind");
  need(kind === "uniform" || kind === "thompson" || kind === "inverse-gap", "a law");
  const gamma = kind === "inverse-gap" ? size(told_law, "gamma") : 0;
  const sizes = told_tests.map((test) => {
    const kind = field(test, "kind");
    need(kind === "common" || kind === "difference", "a test");
    return { width: size(test, "width"), outside: kind === "difference" ? size(test, "outside") : 0 };
  });
  const draws = kind === "thompson" ? taken(arrays, "law.draws", basis.rank, -1) : null;
  const weights = kind === "inverse-gap" ? taken(arrays, "law.weights", basis.width).data : null;
  let passes = 1;
  const tests = told_tests.map((test, place): Test => {
    const name = `test.${place}`;
    const { width, outside } = sizes[place]!;
    passes++;
    if (test["kind"] === "common") {
      const own = taken(arrays, `${name}.weights`, basis.width).data;
      return (_, rows) => {
        const values = rows.map((row) => dot(row, own));
        const best = values[first(values)]!;
        return values.map((value) => best - value <= 4 * width);
      };
    }
    const coefficients = taken(arrays, `${name}.coefficients`, basis.rank).data;
    const count = whole(field(test, "roots"), "roots", 1 << 24, 0);
    const roots: Numbers[] = [];
    for (let i = 0; i < count; i++) roots.push(taken(arrays, `${name}.root.${i}`, basis.rank, -1));
    passes += roots.length;
    return (context, rows) => {
      const v = rows.map((row) => basis.coordinates(row));
      const values = v.map((each) => dot(each, coefficients));
      const best = first(values);
      const widths = new Float64Array(rows.length);
      for (const root of roots) {
        const images = v.map((each) => times(each, root));
        images.forEach((image, i) => {
          const apart = image.map((x, j) => x - images[best]![j]!);
          widths[i] = widths[i]! + Math.sqrt(dot(apart, apart));
        });
      }
      if (outside) {
        const left = v.map((each, i) => Math.sqrt(basis.residual(context, i, each)));
        left.forEach((each, i) => (widths[i] = widths[i]! + outside * (each + left[best]!)));
      }
      return values.map((value, i) => values[best]! - value <= widths[i]!);
    };
  });
  const limits = limitsOf(told["limits"], count);
  const all = [...Array(count).keys()];
  const everything = all.map(() => true);
  let values: ((context: Row) => Row[]) | undefined;

  /** What the law makes of a set of actions: the share of draws at which each is the best of it. */
  function thompson(context: Row): (active: boolean[]) => Row {
    const scores = (values ??= basis.values(draws!))(context);
    const many = draws!.shape[1]!;
    const prices = limits?.prices;
    if (prices) scores.forEach((row, i) => row.forEach((each, d) => (row[d] = each - prices[i]!)));
    return (active) => {
      scores.forEach((row, i) => {
        if (!active[i]) for (let d = 0; d < many; d++) row[d] = row[d]! - RULED_OUT;
      });
      const law = new Float64Array(count);
      for (let d = 0; d < many; d++) {
        let best = 0;
        for (let i = 1; i < count; i++) if (scores[i]![d]! > scores[best]![d]!) best = i;
        law[best] = law[best]! + 1;
      }
      return law.map((each, i) => (active[i] ? each / many : 0));
    };
  }

  function inverseGap(rows: Row[]): (active: boolean[]) => Row {
    const estimates = rows.map((row, i) => dot(row, weights!) - (limits?.prices?.[i] ?? 0));
    return (active) => {
      const many = active.filter(Boolean).length;
      const best = first(estimates.map((value, i) => (active[i] ? value : value - RULED_OUT)));
      let rest = 0;
      const law = Float64Array.from(all, (i) => {
        const share = active[i] && i !== best ? 1 / (many + gamma * (estimates[best]! - estimates[i]!)) : 0;
        rest += share;
        return share;
      });
      law[best] = 1 - rest;
      return law;
    };
  }

  function probabilities(context: Row): Row {
    const rows = !draws && (tests.length || weights) ? basis.rows(context, all) : [];
    let active = everything;
    if (!draws) for (const test of tests) active = both(active, test(context, rows));
    active = orElse(active, everything);
    const law = draws ? thompson(context) : weights ? inverseGap(rows) : uniform;
    if (!limits) return law(active);
    const offered = limits.offered(context);
    return limits.kept(offered, orElse(both(active, offered), offered), law);
  }

  return {
    probabilities,
    unknown: limits ? limits.kept(limits.always, limits.always, uniform) : uniform(everything),
    passes,
    draws: draws ? draws.shape[1]! : 1,
    limits,
  };
}

/** The same for all of a set. */
function uniform(active: boolean[]): Row {
  const many = active.filter(Boolean).length;
  return Float64Array.from(active, (each) => (each ? 1 / many : 0));
}

/** The first action with cumulative probability above a number in [0, 1). */
export function drawn(law: Row, uniform: number): number {
  const cumulative = new Float64Array(law.length);
  let sum = 0;
  law.forEach((each, i) => (cumulative[i] = sum += each));
  let chosen = 0;
  for (const each of cumulative) if (each / sum <= uniform) chosen++;
  return Math.min(chosen, law.length - 1);
}
