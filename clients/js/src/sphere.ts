/** The sphere randomizer: one of the k nearest of M public directions, or one of the others. */
import { Directions } from "./directions.js";
import { need } from "./errors.js";

export const COIN = 1n << 63n;

export interface Sphere {
  dimension: number;
  candidates: number;
  near: number;
  /** In units of 2^-63. */
  chance: bigint;
}

/** What a report draws besides its datum. Privacy rests on `token`, `coin` and `below`. */
export interface Draws {
  /** Uniform in [0, 1): chooses an action from its law. */
  action(): number;
  /** 16 uniform bytes. */
  token(): Uint8Array;
  /** Uniform in [0, 1): rounds a vector to the sphere. */
  rounding(): number;
  /** True with probability `chance / 2^63`, exactly. */
  coin(chance: bigint): boolean;
  /** A whole number from 0 to `limit - 1`, exactly uniform. */
  below(limit: number): number;
}

/** A number at most `e^epsilon` in units of 2^-128: its series, every term rounded down. */
export function exponentialFromBelow(epsilon: number): bigint {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, Math.min(epsilon, 64));
  const bits = view.getBigUint64(0);
  const exponent = Number(bits >> 52n) || 1;
  const top = (bits & ((1n << 52n) - 1n)) | (bits >> 52n ? 1n << 52n : 0n);
  const shift = BigInt(1075 - exponent); // epsilon = top / 2^shift; above 0 up to 64
  let total = 0n;
  let term = 1n << 128n;
  for (let place = 1n; term; place++) {
    total += term;
    term = (term * top) / (place << shift);
  }
  return total;
}

/** Whether a report costs at most `epsilon`, in whole numbers: `p (M - k) <= e^epsilon (1 - p) k`. */
export function keeps(sphere: Sphere, epsilon: number): boolean {
  const far = BigInt(sphere.candidates - sphere.near) * sphere.chance;
  return far << 128n <= exponentialFromBelow(epsilon) * (COIN - sphere.chance) * BigInt(sphere.near);
}

/** What a report costs in millionths, `ln(p (M - k) / ((1 - p) k))`, rounded up. */
export function costOf({ candidates, near, chance }: Sphere): number {
  const ratio = (Number(chance) * (candidates - near)) / (Number(COIN - chance) * near);
  return Math.ceil(1e6 * Math.log(ratio) - 1e-3);
}

export function checkSphere(parts: unknown[]): Sphere {
  const [dimension, candidates, near, text] = parts as [number, number, number, string];
  need(parts.length === 4 && typeof text === "string" && /^[0-9]{1,19}$/.test(text), "a chance is a text of digits");
  need([dimension, candidates, near].every(Number.isSafeInteger), "sphere");
  need(dimension >= 2 && dimension <= 1 << 16, "dimension");
  need(candidates >= 2 && candidates <= 1 << 12 && candidates % 2 === 0, "candidates");
  need(near >= 1 && near <= candidates / 2, "near");
  const chance = BigInt(text);
  const all = BigInt(candidates);
  need(BigInt(near) * COIN <= chance * all && chance < COIN, "chance");
  return { dimension, candidates, near, chance };
}

/** The k nearest directions to a vector of whole numbers, in the order of their pairs. */
export function nearest(sphere: Sphere, directions: Directions, vector: Float64Array): number[] {
  const products = Array.from({ length: sphere.candidates / 2 }, (_, row) => directions.projection(row, vector));
  const size = products.map(Math.abs);
  return [...size.keys()]
    .sort((a, b) => size[b]! - size[a]! || a - b)
    .slice(0, sphere.near)
    .sort((a, b) => a - b)
    .map((row) => 2 * row + (products[row]! < 0 ? 1 : 0));
}

/** The number to report. */
export function choose(sphere: Sphere, near: number[], coin: boolean, pick: number): number {
  if (coin) return near[pick]!;
  if (pick < near.length) return near[pick]! ^ 1;
  const taken = new Set(near.map((number) => number >> 1));
  const rest = Array.from({ length: sphere.candidates / 2 }, (_, row) => row).filter((row) => !taken.has(row));
  const beyond = pick - near.length;
  return 2 * rest[beyond >> 1]! + (beyond & 1);
}

/** A token and the number of a direction for whole numbers of norm at most `limit`. */
export function randomized(vector: Float64Array, limit: number, sphere: Sphere, draws: Draws): [Uint8Array, number] {
  const token = draws.token();
  let squares = 0n;
  for (const entry of vector) squares += BigInt(entry) ** 2n;
  const forward = draws.rounding() < (1 + Math.sqrt(Number(squares)) / limit) / 2;
  const turned = vector.map((entry) => (forward ? entry : -entry));
  if (!squares) turned[0] = forward ? 1 : -1;
  const coin = draws.coin(sphere.chance);
  const pick = draws.below(coin ? sphere.near : sphere.candidates - sphere.near);
  return [token, choose(sphere, nearest(sphere, new Directions(token, sphere.dimension), turned), coin, pick)];
}
