/** The vectors, the store and the clock of a browser: `capriTest` answers what a test asks. */
import bundles from "../../vectors/bundles.json";
import visits from "../../vectors/device.json";
import directions from "../../vectors/directions.json";
import judge from "../../vectors/judge.json";
import numbers from "../../vectors/numbers.json";
import open from "../../vectors/open.json";
import { DurableClient, LocalClient, databaseStore, uploadTo } from "../src/index.js";
import { type Bundles, type Case, agree, answer, base64 } from "./operations.js";
import { schedules } from "./schedules.js";

async function vectors(): Promise<{ tried: number; wrong: string[] }> {
  const wrong: string[] = [];
  let tried = 0;
  for (const { cases, operations } of [directions, numbers, open, judge, visits] as any[]) {
    for (const each of cases as Case[]) {
      const found = await answer(each, bundles.bundles as Bundles);
      if (found === undefined) continue;
      tried++;
      const { agreement } = operations[each["operation"]];
      if (!agree(found, each["answer"], agreement)) wrong.push(JSON.stringify([each, found]).slice(0, 500));
    }
  }
  return { tried, wrong };
}

/** A client of this origin, with what earlier pages have left. */
async function device(address: string): Promise<DurableClient> {
  const bundle = new Uint8Array(await (await fetch(`${address}/bundle`)).arrayBuffer());
  const allowance = { epsilon: 4, days: 30 };
  return DurableClient.open(bundle, { epsilon: 4, policy: "page", allowance, send: uploadTo(`${address}/reports`) });
}

/** Of two tabs that report at once: how many did, and what the others were told. */
async function race(address: string): Promise<string[]> {
  const tabs = await Promise.all([device(address), device(address)]);
  const both = await Promise.allSettled(tabs.map((tab) => tab.report(1)));
  return both.map((each) => (each.status === "fulfilled" ? String(each.value) : (each.reason as Error).name)).sort();
}

/** Milliseconds to load a bundle, and then to decide and report. */
async function times(data: string, rounds: number, columns = 1): Promise<[number, number][]> {
  const bundle = base64(data);
  const found: [number, number][] = [];
  for (let i = 0; i < rounds; i++) {
    const start = performance.now();
    const client = await LocalClient.open(bundle, { epsilon: 4 });
    const loaded = performance.now();
    client.act(Array.from({ length: columns }, () => Math.random()));
    await client.report(0.5);
    found.push([loaded - start, performance.now() - loaded]);
  }
  return found;
}

(globalThis as any).capriTest = {
  vectors,
  times,
  race,
  device,
  schedules: (seed: number, count: number, address: string) => schedules(seed, count, address, (name) => databaseStore(name)),
};
