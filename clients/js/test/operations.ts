/** The operations of the test vectors, by what the package is made of. */
import { openBundle } from "../src/bundle.js";
import { LocalClient } from "../src/client.js";
import { decide, encode, packed, report } from "../src/device.js";
import { CELLS, Directions } from "../src/directions.js";
import { sha256 } from "../src/digests.js";
import { DurableClient } from "../src/durable.js";
import { BundleError } from "../src/errors.js";
import { kernel } from "../src/kernels.js";
import { schemaOf } from "../src/schema.js";
import { memoryStore } from "../src/stores.js";
import { type Draws, checkSphere, exponentialFromBelow, keeps, randomized } from "../src/sphere.js";

export type Case = { [name: string]: any };
export type Bundles = { [name: string]: string };

export const hex = (text: string): Uint8Array =>
  Uint8Array.from({ length: text.length / 2 }, (_, i) => parseInt(text.slice(2 * i, 2 * i + 2), 16));
export const text = (data: Uint8Array): string =>
  Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
export const base64 = (data: string): Uint8Array => Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));

export function drawsOf(told: Case): Draws {
  return {
    action: () => told["action"],
    token: () => hex(told["token"]),
    rounding: () => told["rounding"],
    coin: (chance) => BigInt(told["coin"]) < chance,
    below: (limit) => told["pick"] % limit,
  };
}

/** A bundle with some bytes replaced, from the last place to the first, and signed anew. */
export function spliced(told: Case, bundles: Bundles): Uint8Array {
  let data = [...base64(bundles[told["bundle"]]!)];
  if (told["sign"]) data = data.slice(0, -32);
  for (const [start, removed, inserted] of [...(told["splices"] ?? [])].reverse()) {
    data = [...data.slice(0, start), ...hex(inserted), ...data.slice(start + removed)];
  }
  const bytes = new Uint8Array(data.length + (told["pad"] ?? 0));
  bytes.set(data);
  return told["sign"] ? Uint8Array.from([...data, ...sha256(bytes)]) : bytes;
}

export async function reasonOf(data: Uint8Array, epsilon: number, digest?: Uint8Array): Promise<string> {
  try {
    await LocalClient.open(data, digest ? { epsilon, digest } : { epsilon });
    return "ok";
  } catch (problem) {
    if (problem instanceof BundleError) return problem.reason;
    throw problem;
  }
}

/** The answer to a case; undefined for what only an aggregator does. */
export async function answer(told: Case, bundles: Bundles): Promise<unknown> {
  const opened = () => openBundle(base64(bundles[told["bundle"]]!));
  const context = (bundle: ReturnType<typeof opened>): Float64Array =>
    Array.isArray(told["context"])
      ? Float64Array.from(told["context"], (x) => x ?? NaN)
      : bundle.schema!.row(told["context"]);
  const reward = told["reward"] ?? NaN;
  switch (told["operation"]) {
    case "table":
      return told["places"].map((place: number) => CELLS[place]);
    case "direction":
      return [...new Directions(hex(told["token"]), told["dimension"]).direction(told["row"])];
    case "direction_sum": {
      const total = new Float64Array(told["dimension"]);
      told["tokens"].forEach((token: string, i: number) => {
        const number = told["numbers"][i];
        const found = new Directions(hex(token), total.length).direction(number >> 1);
        found.forEach((x, j) => (total[j] = total[j]! + (number & 1 ? -x : x)));
      });
      return [...total];
    }
    case "exponential":
      return String(exponentialFromBelow(told["epsilon"]));
    case "keeps":
      return keeps(checkSphere(told["sphere"]), told["epsilon"]);
    case "randomize": {
      const vector = Float64Array.from(told["vector"]);
      return randomized(vector, told["limit"], checkSphere(told["sphere"]), drawsOf(told["draws"]))[1];
    }
    case "pack":
      return text(packed(hex(told["digest"]), hex(told["token"]), told["number"]));
    case "kernel": {
      const points: number[][] = told["points"];
      const columns = points[0]!.length;
      const flat = Float64Array.from(points.flat());
      const between = kernel(told["kernel"])(columns);
      return points.map((_, i) => points.map((_, j) => between(flat, i * columns, flat, j * columns)));
    }
    case "schema":
      return Array.from(schemaOf(told["schema"]).row(told["record"]), (x) => (Number.isNaN(x) ? null : x));
    case "law": {
      const bundle = opened();
      return [...bundle.conduct.probabilities(context(bundle))];
    }
    case "encode": {
      const bundle = opened();
      return [...encode(bundle, context(bundle), told["action"], reward)];
    }
    case "report": {
      const bundle = opened();
      const draws = drawsOf(told["draws"]);
      const row = context(bundle);
      const [action] = decide(bundle, row, draws.action());
      return { action, report: text(report(bundle, row, action, reward, draws)) };
    }
    case "open":
      return reasonOf(spliced(told, bundles), told["epsilon"], told["digest"] && hex(told["digest"]));
    case "renew": {
      const client = await LocalClient.open(base64(bundles[told["bundle"]]!), { epsilon: told["epsilon"] });
      try {
        client.renew(base64(bundles[told["next"]]!));
        return "ok";
      } catch (problem) {
        return (problem as BundleError).reason;
      }
    }
    case "device":
      return visited(told, bundles);
    case "judge":
    case "redeem":
      return undefined;
  }
  throw new Error(`unknown operation ${told["operation"]}`);
}

/** A device that is opened anew for every step: what came of each, and all that is kept. */
async function visited(told: Case, bundles: Bundles): Promise<unknown> {
  const kept = new Map<string, string>(Object.entries(told["kept"] ?? {}));
  const outcomes: unknown[] = [];
  for (const step of told["steps"] as Case[]) {
    try {
      const terms = {
        epsilon: told["epsilon"], policy: step["policy"], person: step["person"], allowance: told["allowance"],
        store: memoryStore(kept), send: async () => step["says"], consent: () => step["consent"] ?? true,
        share: step["share"], delay: step["delay"], now: () => step["now"],
      };
      const ticket = async (commitment: Uint8Array) => {
        if (step["offline"]) throw new TypeError("offline");
        const key = await crypto.subtle.importKey("raw", hex(told["key"]) as BufferSource, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
        return new Uint8Array(await crypto.subtle.sign("HMAC", key, commitment as BufferSource)).slice(0, 16);
      };
      const log = async () =>
        Array.isArray(step["log"]) ? step["log"].map((name: string) => text(base64(bundles[name]!).slice(-32))) : step["log"];
      if ("log" in step) Object.assign(terms, { log });
      if (told["key"]) Object.assign(terms, { ticket });
      const client = await DurableClient.openWith(base64(bundles[step["bundle"]]!), terms, drawsOf(told["draws"]));
      if (step["do"] === "act") outcomes.push((await client.act(step["context"])).actionIndex);
      else if (step["do"] === "report") outcomes.push(await client.report(step["reward"]));
      else if (step["do"] === "flush") outcomes.push(await client.flush({ again: step["again"] ?? false }));
      else outcomes.push(await (step["do"] === "spending" ? client.spending() : client.status()));
    } catch (problem) {
      outcomes.push((problem as Error).name);
    }
  }
  const shown = (kept: string): unknown => {
    try {
      return sorted(JSON.parse(kept));
    } catch {
      return kept.length > 50 ? text(sha256(base64(kept))) : kept;
    }
  };
  return [outcomes, Object.fromEntries([...kept].sort().map(([name, each]) => [name, shown(each)]))];
}

/** The same value with the names of its objects in order. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).sort().map(([name, each]) => [name, sorted(each)]));
}

const flat = (value: unknown): unknown[] => (Array.isArray(value) ? value.flatMap(flat) : [value]);

/** Whether an answer is right, by the rule of its operation. */
export function agree(found: unknown, wanted: unknown, agreement: string): boolean {
  if (agreement === "exact") return JSON.stringify(found) === JSON.stringify(wanted);
  const [one, two] = [flat(found) as number[], flat(wanted) as number[]];
  const allowed = agreement === "1 unit" ? 1 : 1e-9 * Math.max(...two.map(Math.abs), 1e-300);
  return one.length === two.length && one.every((x, i) => Math.abs(x - two[i]!) <= allowed);
}
