/** Draws that anybody can reproduce from a seed and a user's number, as simulations make them. */
import { Seed } from "../src/directions.js";
import type { Draws } from "../src/sphere.js";

export function simulated(seed: number, user: number): Draws {
  const halves = (value: number) => [value >>> 0, Math.floor(value / 2 ** 32)];
  const key = new Seed(Uint32Array.from([...halves(seed), ...halves(user)]), 2);
  const word = (purpose: number, counter = 0): [number, number] => {
    const words = key.row(purpose);
    return [words[2 * counter]!, words[2 * counter + 1]!];
  };
  const uniform = (purpose: number): number => {
    const [low, high] = word(purpose);
    return (high * 2 ** 21 + (low >>> 11)) * 2 ** -53;
  };
  return {
    action: () => uniform(0),
    token: () => {
      const token = new DataView(new ArrayBuffer(16));
      [0, 1].forEach((counter) => {
        const [low, high] = word(1, counter);
        token.setUint32(8 * counter, low, true);
        token.setUint32(8 * counter + 4, high, true);
      });
      return new Uint8Array(token.buffer);
    },
    rounding: () => uniform(2),
    coin: (chance) => {
      const [low, high] = word(3);
      return ((BigInt(high) << 32n) | BigInt(low)) >> 1n < chance;
    },
    below: (limit) => Math.floor(uniform(4) * limit),
  };
}
