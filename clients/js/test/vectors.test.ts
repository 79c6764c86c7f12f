import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { type Case, agree, answer } from "./operations.js";

const read = (name: string) => JSON.parse(readFileSync(new URL(`../../vectors/${name}.json`, import.meta.url), "utf8"));
const { bundles } = read("bundles");

test.each(["directions", "numbers", "open", "judge", "device"])("every vector of %s", async (name) => {
  const { cases, operations, version } = read(name);
  expect(version).toBe(4);
  const wrong: unknown[] = [];
  for (const each of cases as Case[]) {
    const found = await answer(each, bundles);
    const { side, agreement } = operations[each["operation"]];
    if (found === undefined) expect(side).toBe("aggregator");
    else if (!agree(found, each["answer"], agreement)) wrong.push([each, found]);
  }
  expect(wrong.map((each) => JSON.stringify(each).slice(0, 1500))).toEqual([]);
});
