/** What examples/web says that a server can infer, against every outcome of the randomizer. */
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
// @ts-expect-error: plain JavaScript
import { likelihood } from "../../../examples/web/inference.js";
import { openBundle } from "../src/bundle.js";
import { encode } from "../src/device.js";
import { Directions } from "../src/directions.js";
import { randomized } from "../src/sphere.js";
import { base64 } from "./operations.js";

const stored = JSON.parse(readFileSync(new URL("../../vectors/bundles.json", import.meta.url), "utf8")).bundles;

test.each(["first", "products", "limits"])("likelihoods are those of the randomizer: %s", (name) => {
  const bundle = openBundle(base64(stored[name]));
  const sphere = bundle.sphere;
  const token = Uint8Array.from({ length: 16 }, (_, i) => 37 * i + 11);
  for (const [x, action, reward] of [[0.2, 0, 0.7], [0.9, 2, -1], [NaN, 1, 0]] as const) {
    const context = Float64Array.of(x);
    const vector = encode(bundle, context, action, reward);
    const forward = (1 + Math.hypot(...vector) / bundle.normLimit) / 2;
    const heads = Number(sphere.chance) / 2 ** 63;
    const wanted = new Float64Array(sphere.candidates);
    for (const [rounding, turn] of [[0, forward], [1 - 2 ** -53, 1 - forward]] as const) {
      for (const [coin, chance, many] of [
        [true, heads, sphere.near],
        [false, 1 - heads, sphere.candidates - sphere.near],
      ] as const) {
        for (let pick = 0; pick < many; pick++) {
          const draws = { action: () => 0, token: () => token, rounding: () => rounding, coin: () => coin, below: () => pick };
          const [, number] = randomized(vector, bundle.normLimit, sphere, draws);
          wanted[number] = wanted[number]! + (turn * chance) / many;
        }
      }
    }
    const directions = new Directions(token, sphere.dimension);
    wanted.forEach((each, number) => {
      expect(likelihood(bundle, directions, number, context, action, reward)).toBeCloseTo(each, 12);
    });
  }
});
