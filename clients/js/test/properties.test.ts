import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { crc32 as zlibCrc } from "node:zlib";
import fc from "fast-check";
import { describe, expect, test, vi } from "vitest";
import { openBundle } from "../src/bundle.js";
import { encode } from "../src/device.js";
import { crc32, sha256 } from "../src/digests.js";
import { CELLS, Directions, Seed, rint } from "../src/directions.js";
import { folderStore } from "../src/node.js";
import { webCrypto } from "../src/randomness.js";
import { COIN, choose, keeps, nearest } from "../src/sphere.js";
import { BudgetError, BundleError, DataError, DurableClient, LocalClient, type Store, type Terms, memoryStore } from "../src/index.js";
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

const refused = async (made: Promise<unknown> | (() => unknown), kind: unknown) =>
  expect(typeof made === "function" ? (async () => made())() : made).rejects.toBeInstanceOf(kind);

describe("a client", () => {
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

describe("a durable client", () => {
  const draws = drawsOf({ action: 0.1, token: "00".repeat(16), rounding: 0.5, coin: "5", pick: 3 });
  const allowance = { epsilon: 8, days: 30 };
  const send = async () => "accepted";
  const open = (store: Store, changes: Partial<Terms> = {}, data = first) =>
    DurableClient.openWith(data, { epsilon, allowance, policy: "books", store, send, ...changes }, draws);
  const kinds: [string, () => Store][] = [
    ["memory", () => memoryStore()],
    ["a folder", () => folderStore(join(mkdtempSync(join(tmpdir(), "capri-")), "kept"))],
  ];

  test.each(kinds)("a decision outlives reloads and newer bundles, in %s", async (_, made) => {
    for (const context of [[0.25], [NaN], [1e300], [-0]]) {
      const store = made();
      let sent: Uint8Array | null = null;
      const keep = async (report: Uint8Array) => ((sent = report), "accepted");
      await (await open(store)).act(context);
      const after = await open(store, { send: keep }, later);
      expect(await after.status()).toBe("waiting");
      await after.act.call(await open(store, { policy: "films" }), [0.9]); // another policy is another report
      expect(await after.report(0.5)).toBe(true);
      expect(await after.status()).toBe("made");
      expect(await (await open(store, { send: keep })).flush()).toBe("accepted");
      const alone = await LocalClient.openWith(first, { epsilon }, draws);
      alone.act(context);
      expect(text(sent!)).toBe(text(await alone.report(0.5)));
      const again = await open(store);
      await again.act(context); // deciding costs nothing
      await refused(again.report(0.5), BudgetError);
      expect(await again.status()).toBe("accepted");
    }
  });

  test.each(kinds)("two tabs make one report, in %s", async (_, made) => {
    const store = made();
    const tabs = await Promise.all([open(store), open(store)]);
    await Promise.all(tabs.map((tab) => tab.act([0.5])));
    const both = await Promise.allSettled(tabs.map((tab) => tab.report(1)));
    expect(both.map((each) => each.status).sort()).toEqual(["fulfilled", "rejected"]);
  });

  test("processes that change a folder at once count every change", async () => {
    const folder = mkdtempSync(join(tmpdir(), "capri-"));
    const add = () => folderStore(folder).change(["n"], (texts) => void (texts[0] = String(Number(texts[0] ?? 0) + 1)));
    await Promise.all(Array.from({ length: 30 }, add));
    for (let i = 0; i < 90; i++) await add();
    expect(await folderStore(folder).change(["n"], ([n]) => n)).toBe("120");
    expect(readdirSync(folder).length).toBeLessThanOrEqual(102);
  });

  test("an upload is the same bytes until it is answered, and waits longer each time", async () => {
    const sent: string[] = [];
    let [now, answer] = [1e12, "please log in"];
    const client = await open(memoryStore(), { now: () => now, send: async (report) => (sent.push(text(report)), answer) });
    await client.act([0.5]);
    await client.report(1);
    const times: number[] = [];
    for (let hour = 0; hour < 6; hour++) {
      for (let second = 0; second < 3600; second++, now += 1000) {
        const before = sent.length;
        expect(await client.flush()).toBe(null);
        if (sent.length > before) times.push(now);
      }
    }
    expect(times.length).toBeGreaterThan(10);
    expect(times.length).toBeLessThan(25);
    expect(new Set(sent).size).toBe(1);
    now -= 1e11; // a clock that was set back by three years
    answer = "replayed";
    expect(await client.flush()).toBe(null);
    expect(await client.flush({ again: true })).toBe("replayed");
    expect(await client.flush()).toBe("replayed");
    const count = sent.length;
    await client.flush({ again: true });
    expect(sent.length).toBe(count);
  });

  test("a report does not leave before its time", async () => {
    let [now, sent] = [0, 0];
    const client = await open(memoryStore(), { delay: 60, now: () => now, send: async () => (sent++, "accepted") });
    await client.act([0.5]);
    await client.report(1);
    expect(await client.flush({ again: true })).toBe(null);
    expect(sent).toBe(0);
    now = 60_000;
    expect(await client.flush()).toBe("accepted");
  });

  test("one ledger for all policies, by a clock that may jump", async () => {
    const store = memoryStore();
    let now = 0; // a device whose battery was empty
    const report = async (policy: string, person?: string) => {
      const client = await open(store, { policy, now: () => now, person });
      await client.act([0.5]);
      return client.report(1);
    };
    expect(await report("books")).toBe(true);
    now = 1.8e12; // and then it learns the time
    expect(await report("films")).toBe(true);
    await refused(report("songs"), BudgetError);
    expect(await report("songs", "her brother")).toBe(true);
    const client = await open(store, { now: () => now, policy: "songs" });
    expect(await client.spending()).toBe(
      "In the last 30 days this device has made 2 private reports (books: 4, films: 4), at a cost of 8 of the 8 that you allow.",
    );
    expect(await client.status()).toBe("waiting");
    for (let day = 0; day < 21; day++) await refused(report("songs"), BudgetError).then(() => (now += 86_400_000));
    for (let day = 0; day < 3; day++, now += 86_400_000) await client.status();
    expect(await report("songs")).toBe(true);
  });

  test("consent and cohorts", async () => {
    const store = memoryStore();
    const no = await open(store, { consent: async () => false });
    await no.act([0.5]);
    expect(await no.report(1)).toBe(false);
    expect(await no.status()).toBe("none");
    expect(await no.spending()).toContain("0 private reports, at a cost of 0");
    const few = { policy: "films", share: 0.05 }; // the draw is 0.1
    const out = await open(store, few);
    await out.act([0.5]);
    expect(await out.report(1)).toBe(false);
    expect(await (await open(store, { ...few, share: 1 })).report(1)).toBe(false); // drawn once
    const part = await open(store, { policy: "songs", share: 0.15 });
    await part.act([0.5]);
    expect(await part.report(1)).toBe(true);
  });

  test("storage that is full, gone or damaged", async () => {
    const kept = new Map<string, string>();
    const store = memoryStore(kept);
    const full: Store = { change: () => Promise.reject(new Error("quota")) };
    await refused(open(full), Error);
    const client = await open(store);
    await client.act([0.5]);
    const names = [...kept.keys()];
    await client.report(1);
    kept.clear(); // evicted while the page is open
    await client.act([0.5]);
    await refused(client.report(1), BudgetError);
    const other = await open(store, { policy: "films" });
    await other.act([0.5]);
    for (const name of kept.keys()) if (name !== names[0]) kept.delete(name);
    await refused((await open(store, { policy: "films" }, later)).report(1), DataError); // its bundle is gone
    for (const text of ["", "{", "[]", "7", '{"spent": 3}']) {
      kept.set(names[0]!, text);
      await refused(open(store), DataError);
    }
  });

  test("names of policies and people do not meet", async () => {
    const store = memoryStore();
    const scopes = [["a", "b"], ["ab", ""], ["", "ab"], ["__proto__", ""], ["constructor", "x"], ['"', "]"]] as const;
    for (const [policy, person] of scopes) {
      const client = await open(store, { policy, person });
      expect(await client.status()).toBe("none");
      await client.act([0.5]);
      expect(await client.report(1)).toBe(true);
    }
  });

  test("watches until the service has answered", async () => {
    const answers = [null, "accepted"];
    let sent = 0;
    const client = await open(memoryStore(), { send: async () => answers[sent++] });
    const stop = client.watch();
    await client.act([0.5]);
    await client.report(1);
    await vi.waitFor(async () => expect(await client.status()).toBe("accepted"), { timeout: 30_000 });
    stop();
    expect(sent).toBe(2);
  });

  test("refuses terms that are none", async () => {
    for (const allowance of [{ epsilon: 0, days: 1 }, { epsilon: 1, days: NaN }, { epsilon: 1, days: Infinity }]) {
      await refused(open(memoryStore(), { allowance }), DataError);
    }
    await refused(open(memoryStore(), { share: 2 }), DataError);
    await refused(open(memoryStore(), { epsilon: 0 }), DataError);
    await refused(open(memoryStore(), { epsilon: 1 }), BundleError);
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
