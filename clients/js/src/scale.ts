/** From a reward to the number that is learnt: clipped to its range, transformed, centred. */
import { need } from "./errors.js";
import { type Bag, has, isNumber, number } from "./header.js";

export interface Scale {
  low: number;
  high: number;
  bound: number;
  learnt: (reward: number) => number;
}

const TRANSFORMS: { [name: string]: (x: number) => number } = { log1p: Math.log1p, sqrt: Math.sqrt };
const CLOSE = 1e-9;

export function scaleOf(header: Bag): Scale {
  const bound = number(header["reward_bound"], "reward_bound", 1e-50, 1e50);
  const clipped = (y: number): number => Math.min(Math.max(y, -bound), bound);
  if (!has(header, "reward_range") || header["reward_range"] === null) {
    return { low: -bound, high: bound, bound, learnt: clipped };
  }
  const ends = header["reward_range"] as unknown[];
  need(Array.isArray(ends) && ends.length === 2 && ends.every(isNumber), "reward_range");
  const [low, high] = ends.map((end) => number(end, "reward_range", -1e50, 1e50)) as [number, number];
  need(high - low >= 1e-50, "reward_range");
  const name = has(header, "reward_transform") ? header["reward_transform"] : null;
  need(name === null || (typeof name === "string" && has(TRANSFORMS, name) && low >= 0), "reward_transform");
  const transform = name === null ? (x: number): number => x : TRANSFORMS[name as string]!;
  const centre = transform(low) / 2 + transform(high) / 2;
  const half = transform(high) / 2 - transform(low) / 2;
  need(half > CLOSE * Math.abs(centre), "reward_range is too narrow");
  need(Math.abs(half - bound) <= CLOSE * bound, "its range of rewards has another bound");
  const learnt = (reward: number): number => clipped(transform(Math.min(Math.max(reward, low), high)) - centre);
  return { low, high, bound, learnt };
}
