/**
 * Devices that meet everything at once, by a seed: reloads, crashes before and after a change is kept, two tabs, a
 * network that loses requests and replies, portals, clocks that jump. What a device promises is checked against what
 * left it: one report for each policy, none lost, nothing beyond the allowance.
 */
import { BudgetError, type Bytes, DataError, DurableClient, type Store, uploadTo } from "../src/index.js";
import { text } from "./operations.js";

const DAY = 86_400_000;
const ALLOWANCE = { epsilon: 8, days: 30 };
const POLICIES = ["books", "films", "songs"];

class Crash extends Error {}

/** Mulberry32. */
function generator(seed: number): () => number {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let z = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    z = (z + Math.imul(z ^ (z >>> 7), 61 | z)) ^ z;
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}

interface Outcome {
  wrong: string[];
  made: number;
  accepted: number;
  crashes: number;
  refused: number;
  uploads: number;
}

async function schedule(seed: number, store: Store, address: string, bundle: () => Promise<Uint8Array>, told: Outcome): Promise<void> {
  const random = generator(seed);
  const below = (limit: number) => Math.floor(random() * limit);
  let calm = false;
  let [passed, offset, jumps] = [0, 1.7e12, 0];
  const left = new Map<string, Set<string>>(POLICIES.map((policy) => [policy, new Set()]));
  const answers = new Map<string, string[]>();
  const spent: number[] = [];
  const fragile: Store = {
    change: async (names, step) => {
      const fate = calm ? 1 : random();
      if (fate < 0.05) throw new Crash();
      const found = await store.change(names, step);
      if (fate < 0.1) throw new Crash(); // kept, and the page never heard of it
      return found;
    },
  };
  const post = uploadTo(address);
  const send = (policy: string) => async (report: Bytes) => {
    const fate = calm ? 1 : random();
    if (fate < 0.2) throw new TypeError("offline");
    left.get(policy)!.add(text(report));
    told.uploads++;
    const status = String(await post(report));
    answers.set(text(report), [...(answers.get(text(report)) ?? []), status]);
    if (fate < 0.4) throw new TypeError("the reply was lost");
    return fate < 0.5 ? "please log in" : status;
  };
  const open = async (policy: string) =>
    DurableClient.open(await bundle(), {
      epsilon: 4, allowance: ALLOWANCE, policy, store: fragile, send: send(policy), now: () => offset + passed,
    });
  const tabs: ([DurableClient, string] | null)[] = [null, null];
  const made = new Set<string>();
  for (let step = 0; step < 60; step++) {
    passed += random() * (random() < 0.1 ? 10 * DAY : DAY / 50);
    const place = below(2);
    const tab = tabs[place];
    try {
      if (!tab || random() < 0.1) {
        tabs[place] = null;
        const policy = POLICIES[below(POLICIES.length)]!;
        tabs[place] = [await open(policy), policy];
        continue;
      }
      const [client, policy] = tab;
      const what = random();
      if (what < 0.35) await client.act([random()]);
      else if (what < 0.6) {
        if (await client.report(random() < 0.3 ? null : random())) {
          made.add(policy);
          spent.push(passed);
        }
      } else if (what < 0.9) await client.flush({ again: random() < 0.5 });
      else if (what < 0.93) {
        jumps++;
        offset += 400 * DAY * random();
      } else if (what < 0.95) offset -= 400 * DAY * random();
      else tabs[place] = null;
    } catch (problem) {
      if (problem instanceof Crash) {
        tabs[place] = null;
        told.crashes++;
      } else if (problem instanceof BudgetError) told.refused++;
      else if (!(problem instanceof DataError)) throw problem;
    }
  }
  calm = true;
  const complain = (problem: string) => told.wrong.push(`schedule ${seed}: ${problem}`);
  for (const policy of POLICIES) {
    const client = await open(policy);
    const status = await client.flush({ again: true });
    const reports = [...left.get(policy)!];
    if (reports.length > 1) complain(`${reports.length} reports of ${policy}`);
    if (made.has(policy) && reports.length === 0) complain(`the report of ${policy} is lost`);
    if (reports.length && status !== "accepted" && status !== "replayed") complain(`${policy} ended as ${status}`);
    for (const report of reports) {
      const counted = answers.get(report)!.filter((each) => each === "accepted").length;
      if (counted !== 1) complain(`a report of ${policy} counted ${counted} times`);
      told.accepted += counted;
    }
    told.made += reports.length;
  }
  // A jump ahead frees a quarter of the period at most.
  const window = DAY * ALLOWANCE.days * (1 - jumps / 4);
  for (const start of spent) {
    const cost = 4 * spent.filter((each) => each >= start && each < start + window).length;
    if (window > 0 && cost > ALLOWANCE.epsilon) complain(`spent ${cost} in a period`);
  }
}

export async function schedules(seed: number, count: number, address: string, store: (name: string) => Store): Promise<Outcome> {
  const told: Outcome = { wrong: [], made: 0, accepted: 0, crashes: 0, refused: 0, uploads: 0 };
  const bundle = async () => new Uint8Array(await (await fetch(`${address}/bundle`)).arrayBuffer());
  for (let i = 0; i < count; i++) await schedule(seed + i, store(`device-${seed + i}`), `${address}/reports`, bundle, told);
  return told;
}
