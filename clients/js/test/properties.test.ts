import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { crc32 as zlibCrc } from "node:zlib";
import fc from "fast-check";
import { describe, expect, test, vi } from "vitest";
import { openBundle } from "../src/bundle.js";
import { encode } from "../src/device.js";
import { crc32, sha256 } from "../src/digests.js";
import { CELLS, Directions, Seed, rint } from "../src/directions.js";
import { fileReceipt } from "../src/node.js";
import { webCrypto } from "../src/randomness.js";
import { COIN, choose, keeps, nearest } from "../src/sphere.js";
import { BudgetError, BundleError, DataError, LocalClient, storageReceipt } from "../src/index.js";
import { base64, drawsOf, reasonOf, text } from "./operations.js";

const stored = JSON.parse(readFileSync(new URL("../../vectors/bundles.json", import.meta.url), "utf8")).bundles;
const first = base64(stored.first);
const later = base64(stored.thompson);
const epsilon = 4;

const MASK = (1n << 64n) - 1n;
function mixed(word: bigint): bigint {
  word = ((word ^ (word >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  word = ((word ^ (word >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return word ^ (word >> 31n);
}

describe("arithmetic", () => {
  test("the table has its digest", () => {
    const bytes = new Uint8Array(Uint16Array.from(CELLS).buffer);
    expect(text(sha256(bytes))).toBe("964fc31079a24fff1446b70b804d81094fe7f7f52fc275786bd652c7695ac67f");
  });

  test("hashes are those of whole numbers of 64 bits", () => {
    const word = fc.bigInt({ min: 0n, max: MASK });
    fc.assert(
      fc.property(word, word, fc.integer({ min: 0, max: 4095 }), (one, two, row) => {
        const parts = [one, two].flatMap((each) => [Number(each & 0xffffffffn), Number(each >> 32n)]);
        const found = new Seed(Uint32Array.from(parts), 3).row(row);
        for (let j = 0n; j < 3n; j++) {
          const inner = mixed((one + j * 0x9e3779b97f4a7c15n) & MASK);
          const wanted = mixed(inner ^ ((two + BigInt(row + 1) * 0xd1342543de82ef95n) & MASK));
          const at = 2 * Number(j);
          expect((BigInt(found[at + 1]!) << 32n) | BigInt(found[at]!)).toBe(wanted);
        }
      }),
    );
  });

  test("halves are rounded to even", () => {
    fc.assert(
      fc.property(fc.double({ noNaN: true, noDefaultInfinity: true }), fc.integer(), (x, n) => {
        const found = rint(x);
        expect(Math.abs(found - x)).toBeLessThanOrEqual(0.5);
        expect(found).toBe(Math.trunc(found));
        expect(Math.abs(rint(n + 0.5) % 2)).toBe(0);
      }),
    );
  });

  test("digests are those of Node", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (data) => {
        expect(text(sha256(data))).toBe(createHash("sha256").update(data).digest("hex"));
        expect(crc32(data)).toBe(zlibCrc(data));
      }),
    );
  });
});

describe("the randomizer", () => {
  test("every pick names another direction, for any vector", () => {
    const sizes = fc.integer({ min: 1, max: 16 }).chain((half) => fc.tuple(fc.constant(2 * half), fc.integer({ min: 1, max: half })));
    const vector = fc.array(fc.integer({ min: -(2 ** 30), max: 2 ** 30 }), { minLength: 2, maxLength: 9 });
    fc.assert(
      fc.property(sizes, vector, fc.uint8Array({ minLength: 16, maxLength: 16 }), ([candidates, near], q, token) => {
        const sphere = { dimension: q.length, candidates, near, chance: COIN - 1n };
        const found = nearest(sphere, new Directions(token, q.length), Float64Array.from(q));
        const inside = found.map((_, pick) => choose(sphere, found, true, pick));
        const outside = Array.from({ length: candidates - near }, (_, pick) => choose(sphere, found, false, pick));
        expect([...inside, ...outside].sort((a, b) => a - b)).toEqual([...Array(candidates).keys()]);
      }),
      { numRuns: 60 },
    );
  });

  test("Web Crypto draws what was asked for", () => {
    let heads = 0;
    for (let i = 0; i < 4000; i++) {
      heads += webCrypto.coin((COIN * 3n) / 4n) ? 1 : 0;
      expect(webCrypto.below(5)).toBeLessThan(5);
      expect(webCrypto.action()).toBeLessThan(1);
    }
    // Six standard errors: 2e-9 by chance.
    expect(Math.abs(heads - 3000)).toBeLessThan(6 * Math.sqrt(4000 * 0.75 * 0.25));
    expect(webCrypto.coin(0n)).toBe(false);
    expect(webCrypto.coin(COIN)).toBe(true);
    expect(text(webCrypto.token())).not.toBe(text(webCrypto.token()));
  });

  test("one unit of the coin decides", () => {
    const sphere = openBundle(first).sphere;
    expect(keeps(sphere, epsilon)).toBe(true);
    expect(keeps({ ...sphere, chance: sphere.chance + 1n }, epsilon)).toBe(false);
  });
});

const anything = fc.oneof(fc.double(), fc.constantFrom(NaN, Infinity, -Infinity, 5e-324, 1e308, -0, 0));

describe("no value is refused", () => {
  test.each(Object.keys(stored).filter((name) => name !== "gaussian"))("under %s", (name) => {
    const data = base64(stored[name]);
    const bundle = openBundle(data);
    const row = fc.array(anything, { minLength: bundle.contextDimension, maxLength: bundle.contextDimension });
    return fc.assert(
      fc.asyncProperty(row, fc.option(anything), async (context, reward) => {
        const client = await LocalClient.open(data, { epsilon });
        const { actionIndex, propensity } = client.act(context);
        expect(propensity).toBeGreaterThan(0);
        const units = encode(bundle, Float64Array.from(context), actionIndex, reward ?? NaN);
        const squares = Array.from(units, BigInt).reduce((sum, each) => sum + each * each, 0n);
        expect(squares <= BigInt(bundle.normLimit) ** 2n).toBe(true);
        expect((await client.report(reward)).length).toBe(32);
      }),
      { numRuns: 15 },
    );
  });

  test("a record of any cells", async () => {
    const cell = fc.oneof(anything, fc.string(), fc.constantFrom(null, undefined, true, [], {}, 7n, Symbol("x")));
    await fc.assert(
      fc.asyncProperty(fc.record({ age: cell, plan: cell, member: cell }, { requiredKeys: ["age", "plan", "member"] }), async (record) => {
        const client = await LocalClient.open(base64(stored.schema), { epsilon });
        const decision = client.act(record);
        expect(["left", "middle", "right"]).toContain(decision.actionName);
        expect((await client.report(0.5)).length).toBe(32);
      }),
      { numRuns: 40 },
    );
  });
});

test("damaged bundles are refused, or harmless", async () => {
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 0, max: first.length - 33 }), fc.uint8Array({ minLength: 1, maxLength: 8 }), async (at, bytes) => {
      const body = first.slice(0, -32);
      body.set(bytes.subarray(0, body.length - at), at);
      const data = new Uint8Array(first.length);
      data.set(body);
      data.set(sha256(body), body.length);
      expect(typeof (await reasonOf(data, epsilon))).toBe("string");
    }),
    { numRuns: 60 },
  );
});

/** A bundle with another grid, signed anew. */
function onGrid(data: Uint8Array, limit: number): Uint8Array {
  const size = new DataView(data.buffer, data.byteOffset).getUint32(14, true);
  const header = JSON.parse(new TextDecoder().decode(data.subarray(18, 18 + size)));
  const { value_bound, clip_norm } = header.plan;
  header.grid = [((value_bound * clip_norm) / limit) * (1 + 1e-15), limit];
  const told = new TextEncoder().encode(JSON.stringify(header));
  const body = Uint8Array.from([...data.subarray(0, 18), ...told, ...data.subarray(18 + size, -32)]);
  new DataView(body.buffer).setUint32(14, told.length, true);
  return Uint8Array.from([...body, ...sha256(body)]);
}

test("the same steps on any grid, whatever the datum", () => {
  for (const limit of [1, 3, 30, 2 ** 20, 2 ** 31 - 1]) {
    const bundle = openBundle(onGrid(later, limit));
    const steps = (context: number, reward: number) => {
      const spies = [vi.spyOn(Math, "sqrt"), vi.spyOn(globalThis, "BigInt")];
      const found = encode(bundle, Float64Array.of(context), 2, reward);
      const counts = spies.map((spy) => spy.mock.calls.length);
      spies.forEach((spy) => spy.mockRestore());
      return { counts, squared: found.reduce((sum, each) => sum + BigInt(each) ** 2n, 0n) };
    };
    const all = [steps(0.4, 0.5), steps(0, 1e9), steps(NaN, 0.5), steps(0.7, -1e9), steps(1e100, 0)];
    for (const each of all) expect(each.counts).toEqual(all[0]!.counts);
    expect(all.every(({ squared }) => squared <= BigInt(limit) ** 2n)).toBe(true);
    expect(all.some(({ squared }) => squared > 0n)).toBe(true);
  }
});

describe("a client", () => {
  const memory = () => {
    const kept = new Map<string, string>();
    return { getItem: (key: string) => kept.get(key) ?? null, setItem: (key: string, value: string) => void kept.set(key, value) };
  };
  const refused = async (made: Promise<unknown> | (() => unknown), kind: unknown) =>
    expect(typeof made === "function" ? (async () => made())() : made).rejects.toBeInstanceOf(kind);

  test("reports once, also when asked twice at the same time", async () => {
    const client = await LocalClient.open(first, { epsilon });
    await refused(client.report(1), DataError);
    client.act([0.5]);
    const both = await Promise.allSettled([client.report(0.5), client.report(0.5)]);
    expect(both.map((each) => each.status)).toEqual(["fulfilled", "rejected"]);
    client.act([0.5]); // deciding costs nothing
    await refused(client.report(1), BudgetError);
    expect(client.reported).toBe(true);
  });

  test("remembers in a file and in storage", async () => {
    const path = join(mkdtempSync(join(tmpdir(), "capri-")), "receipt");
    const storage = memory();
    for (const make of [() => fileReceipt(path), () => storageReceipt("r", storage)]) {
      const open = () => LocalClient.open(first, { epsilon, receipt: make() });
      const [one, two] = [await open(), await open()];
      one.act([0.5]);
      two.act([0.5]);
      const both = await Promise.allSettled([one.report(1), two.report(1)]);
      expect(both.filter((each) => each.status === "fulfilled").length).toBe(1);
      const restarted = await open();
      expect(restarted.reported).toBe(true);
      restarted.act([0.5]);
      await refused(restarted.report(null), BudgetError);
    }
    expect(existsSync(path)).toBe(true);
  });

  test("a decision outlives a reload, and is reported as without one", async () => {
    const draws = { action: 0.1, token: "00".repeat(16), rounding: 0.5, coin: "5", pick: 3 };
    for (const context of [[0.25], [NaN], [1e300], [-0]]) {
      const receipt = storageReceipt("r", memory());
      const before = await LocalClient.openWith(first, { epsilon, receipt }, drawsOf(draws));
      expect(before.pending).toBe(null);
      before.act(context);
      const kept = before.pending!;
      expect(kept.length).toBeLessThan(200);
      const after = await LocalClient.openWith(first, { epsilon, receipt, pending: kept }, drawsOf(draws));
      expect(after.pending).toBe(kept);
      after.renew(later, { keep: true });
      const report = await after.report(0.5);
      const alone = await LocalClient.openWith(first, { epsilon }, drawsOf(draws));
      alone.act(context);
      expect(text(report)).toBe(text(await alone.report(0.5)));
      await refused(before.report(0.5), BudgetError); // the page that was left
      const spent = await LocalClient.open(first, { epsilon, receipt, pending: kept });
      expect([spent.reported, spent.pending, text(spent.made!)]).toEqual([true, null, text(report)]);
      await refused(spent.report(0.5), BudgetError);
    }
  });

  test("a decision that was not kept so is refused", async () => {
    const receipt = storageReceipt("r", memory());
    const client = await LocalClient.open(first, { epsilon, receipt });
    client.act([0.5]);
    const kept = JSON.parse(client.pending!);
    const changes = [
      "", "{}", "null", "[]", '{"digest":', JSON.stringify({ ...kept, digest: "00" }), JSON.stringify({ ...kept, action: 99 }),
      JSON.stringify({ ...kept, action: -1 }), JSON.stringify({ ...kept, action: 0.5 }), JSON.stringify({ ...kept, context: [] }),
      JSON.stringify({ ...kept, context: ["0.5"] }), JSON.stringify({ ...kept, context: { 0: 0.5, length: 1 } }),
    ];
    for (const pending of changes) await refused(LocalClient.open(first, { epsilon, receipt, pending }), DataError);
    await refused(LocalClient.open(later, { epsilon, receipt, pending: client.pending }), DataError);
    await refused(LocalClient.open(first, { epsilon, pending: client.pending }), DataError); // could be reported twice
  });

  test("an upload that failed is the same bytes again", async () => {
    const path = join(mkdtempSync(join(tmpdir(), "capri-")), "receipt");
    const storage = memory();
    for (const make of [() => fileReceipt(path), () => storageReceipt("r", storage)]) {
      const client = await LocalClient.open(first, { epsilon, receipt: make() });
      expect(client.made).toBe(null);
      client.act([0.5]);
      const report = await client.report(1); // and the upload fails
      expect(text(client.made!)).toBe(text(report));
      const restarted = await LocalClient.open(first, { epsilon, receipt: make() });
      expect(text(restarted.made!)).toBe(text(report));
    }
    // Power was lost while the receipt was written: there was a report, and its bytes are gone.
    for (const left of [new Uint8Array(0), readFileSync(path).subarray(0, 20), new Uint8Array(32)]) {
      writeFileSync(path, left);
      const client = await LocalClient.open(first, { epsilon, receipt: fileReceipt(path) });
      expect([client.reported, client.made]).toEqual([true, null]);
    }
  });

  test("keeps silent where the receipt cannot be kept", async () => {
    const storage = { getItem: () => null, setItem: () => undefined };
    const client = await LocalClient.open(first, { epsilon, receipt: storageReceipt("r", storage) });
    client.act([0.5]);
    await refused(client.report(1), Error);
    await refused(client.report(1), BudgetError);
  });

  test("renews", async () => {
    const client = await LocalClient.open(first, { epsilon });
    client.act([0.5]);
    expect(client.renew(first)).toBe(false);
    expect(client.renew(later, { keep: true })).toBe(false);
    expect(text(await client.report(1)).slice(4, 20)).toBe(text(first.slice(-32)).slice(0, 16));
    expect(client.epoch).toBe(2);
    await refused(() => client.renew(first), BundleError);
    try {
      client.renew(first);
    } catch (problem) {
      expect((problem as BundleError).reason).toBe("older");
    }
    const other = await LocalClient.open(first, { epsilon });
    other.act([0.5]);
    expect(other.renew(later)).toBe(true);
    await refused(other.report(1), DataError);
  });

  test("refuses public mistakes alone", async () => {
    const client = await LocalClient.open(first, { epsilon });
    for (const wrong of [[], [1, 2], "0.5", null, { age: 3 }, 0.5]) {
      await refused(() => client.act(wrong as never), DataError);
    }
    for (const odd of [null, "0.5", {}, [0.5], Symbol("x"), () => 1]) {
      expect(client.act([odd] as never).status).toBe("invalid");
    }
    expect((await client.report("1" as never)).length).toBe(32);
    for (const wrong of [0, -1, NaN, Infinity, "4"]) {
      await refused(LocalClient.open(first, { epsilon: wrong as number }), DataError);
    }
    const people = await LocalClient.open(base64(stored.schema), { epsilon });
    await refused(() => people.act({ age: 3 }), DataError);
  });

  test("the same draws make the same report", async () => {
    const draws = { action: 0.1, token: "00".repeat(16), rounding: 0.5, coin: "5", pick: 3 };
    const made = async () => {
      const client = await LocalClient.openWith(first, { epsilon }, drawsOf(draws));
      client.act([0.25]);
      return text(await client.report(0.5));
    };
    expect(await made()).toBe(await made());
  });
});

describe("limits", () => {
  test.each(["limits", "limits-products"])("%s are kept whoever comes", async (name) => {
    const device = await LocalClient.open(base64(stored[name]), { epsilon });
    const anything = fc.oneof(fc.double({ min: 0, max: 1, noNaN: true }), fc.double());
    fc.assert(
      fc.property(anything, (x) => {
        const law = device.probabilities([x]);
        const offered = x <= 0.5; // the rule of the fourth action; a context that is no number meets none
        expect(law.reduce((sum, each) => sum + each, 0)).toBeCloseTo(1, 9);
        expect(law[0]).toBeGreaterThanOrEqual(0.05);
        expect(law[1]).toBeLessThanOrEqual(0.3);
        expect(law[2]).toBeLessThanOrEqual(0.35);
        if (offered && Math.abs(x) <= 1e100) expect(law[3]).toBeGreaterThanOrEqual(0.1);
        else expect(law[3]).toBe(0);
        const { actionIndex, propensity } = device.act([x]);
        expect(propensity).toBe(law[actionIndex]);
      }),
    );
  });
});
