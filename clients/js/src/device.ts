/** What a device does with its datum: decide, encode, make private. */
import { times } from "./basis.js";
import type { Bundle } from "./bundle.js";
import { VERSION } from "./bundle.js";
import { type Bytes, crc32 } from "./digests.js";
import { dot, rint } from "./directions.js";
import { settled } from "./header.js";
import { drawn } from "./law.js";
import { type Draws, randomized } from "./sphere.js";

const LARGEST_CONTEXT = 1e100;
/** Tails are measured up to so many times the bound at which residuals are clipped. */
const LARGEST_EXCESS = 16;

/** Whether a context is a row of numbers within the bound. */
export function usable(context: Float64Array): boolean {
  return context.every((x) => Math.abs(x) <= LARGEST_CONTEXT);
}

/** The row to compute with: zeros in the place of what is no row of numbers. */
function steady(context: Float64Array): Float64Array {
  const fine = usable(context);
  return context.map((x) => (fine ? settled(x) + 0 : 0));
}

/** The public law at a context. */
export function lawOf(bundle: Bundle, context: Float64Array): Float64Array {
  const law = bundle.conduct.probabilities(steady(context)); // the same steps for everybody
  return usable(context) ? law : bundle.conduct.unknown;
}

/** An action from the public law, and its probability. */
export function decide(bundle: Bundle, context: Float64Array, uniform: number): [number, number] {
  const played = lawOf(bundle, context);
  const action = drawn(played, uniform);
  return [action, played[action]!];
}

/** A contribution on the integer grid, of norm at most `normLimit` in exact arithmetic. */
export function encode(bundle: Bundle, context: Float64Array, action: number, reward: number): Float64Array {
  const { valueBound, clipNorm, momentShare, tailShare, step, normLimit } = bundle;
  const tail = Math.min(bundle.rewardBound, LARGEST_EXCESS * valueBound);
  const [row] = bundle.basis.rows(steady(context), [action]) as [Float64Array];
  let psi = times(row, bundle.whitening).map(settled);
  const baseline = bundle.baseline ? settled(dot(row, bundle.baseline)) : 0;
  const given = settled(Number.isFinite(reward) ? reward : bundle.missingReward);
  const value = bundle.learnt(given) - baseline;
  let norm = Math.sqrt(dot(psi, psi));
  if (!Number.isFinite(norm)) {
    psi = new Float64Array(psi.length);
    norm = 0;
  }
  const clipped = Math.min(Math.max(value, -valueBound), valueBound);
  const main = Math.sqrt(1 - momentShare ** 2 - tailShare ** 2);
  const factor = (clipped * ((main * clipNorm) / step)) / Math.max(norm, clipNorm);
  const scaled = Array.from(psi, (x) => x * factor);
  const unit = (valueBound * clipNorm) / step;
  if (momentShare) scaled.push(momentShare * unit * (2 * (clipped / valueBound) ** 2 - 1));
  if (tailShare) {
    const excess = Math.min(Math.abs(value) - Math.abs(clipped), tail) / tail;
    scaled.push(tailShare * unit * (2 * excess - 1));
  }
  const units = withinNorm(Float64Array.from(scaled, rint), normLimit);
  return usable(context) ? units.map((each) => each + 0) : units.map(() => 0);
}

/** Towards zero where the squared norm is beyond the limit, in whole numbers: `q L / (isqrt(|q|^2) + 1)`, else `q L / L`. */
function withinNorm(units: Float64Array, limit: number): Float64Array {
  if (!units.every(Number.isFinite)) return units.map(() => 0);
  const whole = Array.from(units, BigInt);
  const bound = BigInt(limit);
  const squared = whole.reduce((sum, each) => sum + each * each, 0n);
  let root = BigInt(Math.floor(Math.sqrt(Number(squared))));
  root -= BigInt(root * root > squared); // the square root of a rounded number may be one off
  root += BigInt((root + 1n) * (root + 1n) <= squared);
  // The same steps for all: whether a row is too long is secret, and the bundle chose the limit.
  const divisor = squared > bound * bound ? root + 1n : bound;
  return Float64Array.from(whole, (each) => Number((each * bound) / divisor)); // a quotient of BigInt is cut towards 0
}

/** The 32 bytes of a report. */
export function packed(digest: Uint8Array, token: Uint8Array, number: number): Bytes {
  const message = new Uint8Array(32);
  const view = new DataView(message.buffer);
  message[0] = 0xca;
  message[1] = VERSION;
  message.set(digest.subarray(0, 8), 2);
  message.set(token, 10);
  view.setUint16(26, number, true);
  view.setUint32(28, crc32(message.subarray(0, 28)), true);
  return message;
}

/** Whether these are the bytes of a report of this version, undamaged. */
export function isReport(data: Uint8Array): boolean {
  if (data.length !== 32 || data[0] !== 0xca || data[1] !== VERSION) return false;
  return crc32(data.subarray(0, 28)) === new DataView(data.buffer, data.byteOffset).getUint32(28, true);
}

export function report(bundle: Bundle, context: Float64Array, action: number, reward: number, draws: Draws): Bytes {
  const units = encode(bundle, context, action, reward);
  const [token, chosen] = randomized(units, bundle.normLimit, bundle.sphere, draws);
  return packed(bundle.digest, token, chosen);
}
