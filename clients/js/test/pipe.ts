/** Clients in a process of their own, for tests in other languages: one line of JSON in, one out. */
import { createInterface } from "node:readline";
import { openBundle } from "../src/bundle.js";
import { decide, report } from "../src/device.js";
import { type Bundles, answer, base64, reasonOf, text } from "./operations.js";
import { simulated } from "./simulated.js";

let bundle: ReturnType<typeof openBundle>;
let bundles: Bundles | null = null; // of the conformance kit, which asks for cases of the vectors
const lines = createInterface({ input: process.stdin });
for await (const line of lines) {
  const asked = JSON.parse(line);
  let told: unknown;
  if (asked.bundles) {
    bundles = asked.bundles as Bundles;
    continue;
  }
  if (bundles) told = (await answer(asked, bundles)) ?? { unsupported: true };
  else if (asked.operation === "open") told = await reasonOf(base64(asked.data), asked.epsilon);
  else if (asked.operation === "bundle") {
    bundle = openBundle(base64(asked.data));
    told = text(bundle.digest);
  } else {
    const { seed, users, contexts, actions, rewards } = asked;
    told = users.map((user: number, i: number) => {
      const draws = simulated(seed, user);
      const row = Float64Array.from(contexts[i]);
      if (asked.operation === "act") return decide(bundle, row, draws.action())[0];
      return text(report(bundle, row, actions[i], rewards[i] ?? NaN, draws));
    });
  }
  process.stdout.write(JSON.stringify(told) + "\n");
}
