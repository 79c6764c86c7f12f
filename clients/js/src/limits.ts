/** Limits on what is played: floors, ceilings and rules, which hold in every decision by itself. */
import type { Row } from "./basis.js";
import { need } from "./errors.js";
import { type Bag, field, isBag, isNumber, settled, whole } from "./header.js";

export interface Limits {
  /** What the rules offer at a context: something, always. */
  offered(context: Row): boolean[];
  /** The law on the actions offered, within their floors and ceilings. */
  kept(offered: boolean[], law: (some: boolean[]) => Row): Row;
  /** Actions without a rule: what a context that is no row of numbers is offered. */
  always: boolean[];
  /** Taken off the scores of actions. */
  prices: Float64Array | null;
  /** How often a law is asked. */
  rounds: number;
  /** How many columns a context needs. */
  columns: number;
}

const ROUNDING = 1e-9;
const MOST_RULES = 4096;
const DEAREST = 1e15;
const FARTHEST = 1e100;

const sum = (values: ArrayLike<number>): number => {
  let total = 0;
  for (let i = 0; i < values.length; i++) total += values[i]!;
  return total;
};

/** A set, or another one where it is empty. */
const orElse = (set: boolean[], other: boolean[]): boolean[] => (set.includes(true) ? set : other);

function numbers(value: unknown, count: number): Float64Array {
  need(Array.isArray(value) && value.length === count && value.every(isNumber), "limits");
  return Float64Array.from(value as number[], settled);
}

export function limitsOf(told: unknown, count: number): Limits | null {
  if (told === undefined || told === null) return null;
  need(isBag(told), "limits");
  const bag: Bag = told;
  const floor = numbers(field(bag, "floor"), count);
  const ceiling = numbers(field(bag, "ceiling"), count);
  need(floor.every((each, i) => each >= 0 && each <= ceiling[i]!), "floors");
  need(ceiling.every((each) => each > 0 && each <= 1), "ceilings");
  need(sum(floor) <= 1 + ROUNDING, "floors");
  const listed = field(bag, "rules");
  need(Array.isArray(listed) && listed.length <= MOST_RULES, "rules");
  const always = Array<boolean>(count).fill(true);
  let columns = 0;
  const rules = listed.map((rule) => {
    need(Array.isArray(rule) && rule.length === 4 && Array.isArray(rule[1]) && rule[1].length > 0, "a rule");
    const [action, own, low, high] = rule as [unknown, unknown[], unknown, unknown];
    const place = whole(action, "the action of a rule", count - 1, 0);
    const listed = own.map((column) => whole(column, "a column of a rule", Number.MAX_SAFE_INTEGER - 1, 0));
    const end = (value: unknown, none: number): number => {
      if (value === null) return none;
      need(isNumber(value) && Math.abs(value) <= FARTHEST, "an end of a rule");
      return value;
    };
    always[place] = false;
    for (const column of listed) columns = Math.max(columns, column + 1);
    return { place, columns: listed, low: end(low, -Infinity), high: end(high, Infinity) };
  });
  need(sum(ceiling.filter((_, i) => always[i])) >= 1 - ROUNDING, "ceilings leave nothing to play");
  const told_prices = bag["prices"] ?? null;
  const prices = told_prices === null ? null : numbers(told_prices, count);
  need(!prices || prices.every((each) => Math.abs(each) <= DEAREST), "prices");
  const binding = floor.some((each) => each > 0) || ceiling.some((each) => each < 1);
  const rounds = binding ? ceiling.filter((each) => each < 1).length + 2 : 1;

  function kept(offered: boolean[], law: (some: boolean[]) => Row): Row {
    if (!binding) return law(offered);
    const least = floor.map((each, i) => (offered[i] ? each : 0));
    const most = ceiling.map((each, i) => (offered[i] ? each : 0));
    const left = Math.max(1 - sum(least), 0);
    const room = most.map((each, i) => {
      if (!offered[i]) return 0;
      return ceiling[i]! >= 1 ? 2 : Math.min((each - least[i]!) / Math.max(left, 1e-300), 2);
    });
    let found = new Float64Array(count);
    let mass = 1;
    let still = offered;
    for (let round = 0; round < rounds; round++) {
      const shares = law(orElse(still, offered));
      const part = found.map((each, i) => each + mass * shares[i]!);
      found = part.map((each, i) => Math.min(each, room[i]!));
      mass = sum(part.map((each, i) => each - found[i]!));
      still = offered.map((each, i) => each && found[i]! < room[i]!);
    }
    const each = mass / offered.filter(Boolean).length;
    const total = sum(most);
    return found.map((value, i) => {
      if (total < 1 - ROUNDING) return most[i]! / total;
      const share = least[i]! + left * (value + (offered[i] ? each : 0));
      return Math.min(Math.max(share, least[i]!), most[i]!);
    });
  }

  const offered = (context: Row): boolean[] => {
    const found = Array<boolean>(count).fill(true);
    for (const { place, columns, low, high } of rules) {
      const total = columns.reduce((sofar, column) => sofar + context[column]!, 0);
      found[place] &&= total >= low && total <= high;
    }
    return found;
  };
  return { offered, kept, always, prices, rounds, columns };
}
