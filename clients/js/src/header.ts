/** The header of a bundle: strict JSON, numbers as doubles, and nothing that is not asked for. */
import { need } from "./errors.js";

export type Bag = { [name: string]: unknown };

export interface Numbers {
  shape: number[];
  data: Float64Array;
}
export type Arrays = Map<string, Numbers>;

const LEAST = 1e-60;
const LARGEST_NUMBER = 1e15;
const LARGEST_SIDE = 1 << 24;
const DEEPEST = 200;

export const has = (bag: Bag, name: string): boolean => Object.prototype.hasOwnProperty.call(bag, name);
export const isNumber = (value: unknown): value is number => typeof value === "number";
export const isBag = (value: unknown): value is Bag =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** The same number, 0 where it is closer to 0 than 1e-60. */
export const settled = (value: number): number => (Math.abs(value) >= LEAST ? value : 0);

/** A field that must be there. */
export function field(bag: Bag, name: string): unknown {
  need(has(bag, name), `${name} is missing`);
  return bag[name];
}

export function whole(value: unknown, name: string, largest = LARGEST_SIDE, least = 1): number {
  need(Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= largest, name);
  return value as number;
}

export function number(value: unknown, name: string, low: number, high: number): number {
  need(isNumber(value) && value >= low && value <= high, `${name} must lie in ${low} to ${high}`);
  return value;
}

function checkDepth(value: unknown, depth: number): void {
  need(depth <= DEEPEST, "nested too deep");
  if (typeof value === "object" && value !== null) {
    for (const inner of Object.values(value)) {
      if (typeof inner === "object" && inner !== null) checkDepth(inner, depth + 1);
    }
  }
}

export function readHeader(data: Uint8Array): Bag {
  const header: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data));
  checkDepth(header, 1);
  need(isBag(header), "the header is no object");
  const bags = ["plan", "conduct", "kernel", "span"];
  const lists = ["arrays", "grid", "sphere"];
  const listsOrNull = ["varying_actions", "action_names"];
  for (const name of bags) need(!has(header, name) || isBag(header[name]), name);
  for (const name of lists) need(!has(header, name) || Array.isArray(header[name]), name);
  for (const name of listsOrNull) need(!has(header, name) || header[name] === null || Array.isArray(header[name]), name);
  need(!has(header, "schema") || header["schema"] === null || isBag(header["schema"]), "schema");
  const conduct = field(header, "conduct") as Bag;
  need(isBag(field(conduct, "law")), "a law");
  for (const each of field(header, "arrays") as unknown[]) {
    need(Array.isArray(each) && (each.length === 2 || each.length === 3) && Array.isArray(each[1]), "arrays");
  }
  return header;
}

/** The arrays, finite and of the announced shapes, which fill the bytes exactly. */
export function readArrays(listed: unknown, data: Uint8Array, start: number, end: number): Arrays {
  const arrays: Arrays = new Map();
  const view = new DataView(data.buffer, data.byteOffset);
  for (const [name, sides, ...form] of listed as [unknown, unknown[], unknown?][]) {
    const shape = sides.map((side) => whole(side, "an array side"));
    need(typeof name === "string" && !arrays.has(name) && shape.length >= 1 && shape.length <= 2, "a bad array");
    const count = shape.reduce((left, right) => left * right);
    const short = form[0] === "int16" && shape.length === 2;
    need(short || form.length === 0, "an array of an unknown form");
    const columns = short ? shape[1]! : 0;
    const width = short ? 2 : 8;
    need(start + width * (count + columns) <= end, "arrays do not fit");
    const exponents = Array.from({ length: columns }, (_, i) => view.getInt16(start + 2 * i, true));
    need(exponents.every((each) => Math.abs(each) <= 250), "an exponent out of its range");
    start += 2 * columns;
    const numbers = new Float64Array(count);
    for (let i = 0; i < count; i++, start += width) {
      const value = short ? view.getInt16(start, true) * 2 ** exponents[i % columns]! : view.getFloat64(start, true);
      need(Math.abs(value) <= LARGEST_NUMBER, "NaN or enormous numbers");
      numbers[i] = settled(value);
    }
    arrays.set(name, { shape, data: numbers });
  }
  need(start === end, "bytes are left over");
  return arrays;
}

/** An array that must be there, of this shape; a side below 0 may be any. */
export function taken(arrays: Arrays, name: string, ...sides: number[]): Numbers {
  const found = arrays.get(name);
  need(found, `${name} is missing`);
  fits(found, ...sides);
  return found;
}

export function fits(array: Numbers, ...sides: number[]): void {
  need(
    array.shape.length === sides.length && sides.every((side, i) => side < 0 || side === array.shape[i]),
    "arrays do not fit each other",
  );
}
