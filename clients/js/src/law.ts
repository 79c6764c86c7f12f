/** How to play: a public law on the actions. */
import type { Basis, Row } from "./basis.js";
import { need } from "./errors.js";
import { type Arrays, type Bag, field, taken } from "./header.js";
import { type Limits, limitsOf } from "./limits.js";

export interface Conduct {
  /** The probability of each action. */
  probabilities(context: Row): Row;
  /** The law where a context is no row of numbers. */
  unknown: Row;
  draws: number;
  limits: Limits | null;
}

/** What is taken off the score of an action that is not active: more than any score. */
const RULED_OUT = 1e300;

export function conductOf(told: Bag, arrays: Arrays, basis: Basis, count: number): Conduct {
  const kind = field(told["law"] as Bag, "kind");
  need(kind === "uniform" || kind === "thompson", "a law");
  const draws = kind === "thompson" ? taken(arrays, "law.draws", basis.rank, -1) : null;
  const limits = limitsOf(told["limits"], count);
  const everything = Array<boolean>(count).fill(true);
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

  function probabilities(context: Row): Row {
    const law = draws ? thompson(context) : uniform;
    return limits ? limits.kept(limits.offered(context), law) : law(everything);
  }

  return {
    probabilities,
    unknown: limits ? limits.kept(limits.always, uniform) : uniform(everything),
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
