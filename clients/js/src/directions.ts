/** Public directions: what a seed in a report stands for, in exact arithmetic alone. */
import { STEPS } from "./table.js";

export const UNITS = 2 ** 24;

/** 2,048 cell means of the normal law in units of 2^-13. */
export const CELLS: Float64Array = new Float64Array(2048);
{
  // How much larger each entry is than the one before it.
  let entry = 0;
  STEPS.split(" ").forEach((step, place) => (CELLS[place] = entry += parseInt(step, 36)));
}

// A word of 64 bits is two numbers of 32; these are the halves of the last result.
let high = 0;
let low = 0;

function multiply(h: number, l: number, ch: number, cl: number): void {
  const a = l >>> 16;
  const b = l & 0xffff;
  const c = cl >>> 16;
  const d = cl & 0xffff;
  const small = b * d;
  const middle = a * d + b * c + Math.floor(small / 65536);
  high = (a * c + Math.floor(middle / 65536) + Math.imul(h, cl) + Math.imul(l, ch)) >>> 0;
  low = ((middle << 16) | (small & 0xffff)) >>> 0;
}

/** The finaliser of SplitMix64. */
function mix(h: number, l: number): void {
  l ^= (l >>> 30) | (h << 2);
  h ^= h >>> 30;
  multiply(h, l >>> 0, 0xbf58476d, 0x1ce4e5b9);
  l = low ^ ((low >>> 27) | (high << 5));
  h = high ^ (high >>> 27);
  multiply(h, l >>> 0, 0x94d049bb, 0x133111eb);
  low = (low ^ ((low >>> 31) | (high << 1))) >>> 0;
  high = (high ^ (high >>> 31)) >>> 0;
}

function add(h: number, l: number, ch: number, cl: number): void {
  const sum = (l >>> 0) + (cl >>> 0);
  low = sum >>> 0;
  high = (h + ch + (sum > 0xffffffff ? 1 : 0)) >>> 0;
}

/** Hashes of a 128-bit seed, given as four little-endian numbers of 32 bits. */
export class Seed {
  private readonly inner: Uint32Array;

  constructor(
    private readonly words: Uint32Array,
    counters: number,
  ) {
    this.inner = new Uint32Array(2 * counters);
    let [l, h] = words as unknown as [number, number];
    for (let j = 0; j < counters; j++) {
      mix(h, l);
      this.inner[2 * j] = low;
      this.inner[2 * j + 1] = high;
      add(h, l, 0x9e3779b9, 0x7f4a7c15);
      h = high;
      l = low;
    }
  }

  /** 64 bits for every counter of a row, as low and high halves. */
  row(row: number): Uint32Array {
    multiply(0, row + 1, 0xd1342543, 0xde82ef95);
    add(this.words[3]!, this.words[2]!, high, low);
    const keyHigh = high;
    const keyLow = low;
    const out = new Uint32Array(this.inner.length);
    for (let j = 0; j < out.length; j += 2) {
      mix((this.inner[j + 1]! ^ keyHigh) >>> 0, (this.inner[j]! ^ keyLow) >>> 0);
      out[j] = low;
      out[j + 1] = high;
    }
    return out;
  }
}

/** The directions of one seed. */
export class Directions {
  private readonly seed: Seed;

  constructor(
    token: Uint8Array,
    private readonly dimension: number,
  ) {
    const view = new DataView(token.buffer, token.byteOffset, 16);
    const words = Uint32Array.from([0, 4, 8, 12], (place) => view.getUint32(place, true));
    this.seed = new Seed(words, Math.ceil(dimension / 4));
  }

  /** Entries of the table, not yet of length 1. */
  raw(row: number): Float64Array {
    const words = this.seed.row(row);
    const raw = new Float64Array(this.dimension);
    for (let j = 0; j < raw.length; j++) {
      const cell = (words[j >> 1]! >>> (j & 1 ? 20 : 4)) & 0xfff;
      raw[j] = cell < 2048 ? CELLS[cell]! : -CELLS[cell - 2048]!;
    }
    return raw;
  }

  /** `<v, q> / |v|` of a row: sums of whole numbers below 2^53, a square root and a division. */
  projection(row: number, vector: Float64Array): number {
    const raw = this.raw(row);
    return dot(raw, vector) / Math.sqrt(dot(raw, raw));
  }

  /** A unit vector in units of 2^-24. */
  direction(row: number): Float64Array {
    const raw = this.raw(row);
    const scale = UNITS / Math.sqrt(dot(raw, raw));
    return raw.map((entry) => rint(entry * scale));
  }
}

export function dot(left: Float64Array, right: Float64Array): number {
  let sum = 0;
  for (let i = 0; i < left.length; i++) sum += left[i]! * right[i]!;
  return sum;
}

/** The nearest whole number, halves to even. */
export function rint(x: number): number {
  const large = 2 ** 52;
  return Math.abs(x) < large ? (x < 0 ? x - large + large : x + large - large) : x;
}
