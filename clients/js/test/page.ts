/** The vectors, the receipts and the clock of a browser: `capriTest` answers what a test asks. */
import bundles from "../../vectors/bundles.json";
import directions from "../../vectors/directions.json";
import judge from "../../vectors/judge.json";
import numbers from "../../vectors/numbers.json";
import open from "../../vectors/open.json";
import { LocalClient, databaseReceipt, storageReceipt } from "../src/index.js";
import { type Bundles, type Case, agree, answer, base64 } from "./operations.js";

async function vectors(): Promise<{ tried: number; wrong: string[] }> {
  const wrong: string[] = [];
  let tried = 0;
  for (const { cases, operations } of [directions, numbers, open, judge] as any[]) {
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

/** Of two clients with one receipt, and a third one after both: who reported. */
async function receipts(): Promise<boolean[][]> {
  const told: boolean[][] = [];
  for (const receipt of [() => storageReceipt("test"), () => databaseReceipt("test")]) {
    const made = async () => {
      const client = await LocalClient.open(base64(bundles.bundles.first), { epsilon: 4, receipt: receipt() });
      client.act([0.5]);
      return client;
    };
    const both = await Promise.allSettled((await Promise.all([made(), made()])).map((client) => client.report(1)));
    const after = await made();
    const reported = after.reported && after.made?.length === 32;
    const third = await Promise.allSettled([after.report(1)]);
    told.push([both.filter((each) => each.status === "fulfilled").length === 1, reported, third[0]!.status === "rejected"]);
  }
  return told;
}

/** Milliseconds to load a bundle, and then to decide and report. */
async function times(data: string, rounds: number): Promise<[number, number][]> {
  const bundle = base64(data);
  const found: [number, number][] = [];
  for (let i = 0; i < rounds; i++) {
    const start = performance.now();
    const client = await LocalClient.open(bundle, { epsilon: 4 });
    const loaded = performance.now();
    client.act([Math.random()]);
    await client.report(0.5);
    found.push([loaded - start, performance.now() - loaded]);
  }
  return found;
}

(globalThis as any).capriTest = { vectors, receipts, times };
