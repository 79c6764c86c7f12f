/** Named columns: what people bring, as numbers. No cell is ever refused. */
import { DataError, need } from "./errors.js";
import { type Bag, field, has, isBag, isNumber } from "./header.js";

type Encode = (cell: unknown) => number[];

interface Column {
  name: string;
  width: number;
  encode: Encode;
}

export interface Schema {
  dimension: number;
  /** One record as a row of numbers. */
  row(record: Bag): Float64Array;
}

const LONGEST = 200;
const short = (value: unknown): value is string => typeof value === "string" && [...value].length <= LONGEST;

/** A number, NaN for any other cell: what one user sends is never refused for its type. */
export function numberOf(cell: unknown): number {
  return isNumber(cell) || typeof cell === "boolean" || typeof cell === "bigint" ? Number(cell) : NaN;
}

/** A number in [0, 1] and, where that is declared, whether it is missing. */
function onALine(scaled: (x: number) => number, missing: unknown, otherwise: number): Encode {
  return (cell) => {
    const value = scaled(numberOf(cell));
    const none = Number.isNaN(value);
    const number = none ? otherwise : value;
    return missing === "own" ? [number, none ? 1 : 0] : [number];
  };
}

function column(told: unknown): Column {
  need(isBag(told), "a column");
  const kind = field(told, "kind");
  const known: Bag = { numeric: ["low", "high"], boolean: [], categorical: ["levels"] };
  need(typeof kind === "string" && has(known, kind), "the kind of a column");
  const needed = ["name", ...(known[kind] as string[])];
  for (const name of needed) need(has(told, name), `a column has ${name}`);
  for (const name of Object.keys(told)) need(["kind", "missing", ...needed].includes(name), "a field of a column");
  const name = told["name"];
  const missing = has(told, "missing") ? told["missing"] : null;
  need(short(name) && name !== "", "the name of a column");
  const width = missing === "own" ? 1 : 0;
  const stands = missing !== null && missing !== "own";
  if (kind === "boolean") {
    need(!stands || typeof missing === "boolean", "missing");
    const otherwise = missing === null ? NaN : stands ? Number(missing) : 0.5;
    return { name, width: 1 + width, encode: onALine((x) => (x === 0 || x === 1 ? x : NaN), missing, otherwise) };
  }
  if (kind === "numeric") {
    const [low, high] = [told["low"], told["high"]];
    need(isNumber(low) && isNumber(high) && Number.isFinite(low) && Number.isFinite(high), "a range");
    need(high - low > 0 && high - low < Infinity, "a range");
    need(!stands || (isNumber(missing) && missing >= low && missing <= high), "missing");
    const scaled = (x: number) => {
      const value = (x - low) / (high - low);
      return Number.isNaN(value) ? value : Math.min(Math.max(value, 0), 1);
    };
    const otherwise = missing === null ? NaN : stands ? scaled(missing as number) : 0.5;
    return { name, width: 1 + width, encode: onALine(scaled, missing, otherwise) };
  }
  const levels = told["levels"] as (string | number)[];
  need(Array.isArray(levels) && levels.length > 0 && new Set(levels).size === levels.length, "levels");
  const fits = (level: unknown) => short(level) || (Number.isInteger(level) && Math.abs(level as number) <= 2 ** 53);
  need(levels.every(fits), "levels");
  need(!stands || levels.includes(missing as string), "missing");
  need(missing !== "own" || !levels.includes("own"), "missing");
  const encode = (cell: unknown): number[] => {
    let plain: unknown = typeof cell === "string" ? cell : numberOf(cell);
    const none = cell === null || cell === undefined || (isNumber(cell) && Number.isNaN(cell));
    if (none && stands) plain = missing;
    const row = levels.map((level) => (level === plain ? 1 : 0)) as number[];
    const own = none && missing === "own" ? 1 : 0;
    row.push(1 - row.reduce((sum, each) => sum + each, 0) - own);
    return missing === "own" ? [...row, own] : row;
  };
  return { name, width: levels.length + 1 + width, encode };
}

export function schemaOf(told: Bag): Schema {
  need(told["format"] === "capri-schema" && told["version"] === 1, "the description of a schema");
  const listed = told["columns"];
  need(Array.isArray(listed) && listed.length > 0, "a schema lists its columns");
  const columns = listed.map(column);
  need(new Set(columns.map((each) => each.name)).size === columns.length, "names of columns");
  return {
    dimension: columns.reduce((sum, each) => sum + each.width, 0),
    row: (record) => {
      for (const { name } of columns) {
        if (!has(record, name)) throw new DataError(`a record needs the column ${name}`);
      }
      return Float64Array.from(columns.flatMap(({ name, encode }) => encode(record[name])));
    },
  };
}
