/** Web Crypto, asked for every single number. */
import type { Draws } from "./sphere.js";

const bytes = (count: number): Uint8Array => crypto.getRandomValues(new Uint8Array(count));

/** Uniform below 2^bits. */
function bits(count: number): bigint {
  let value = 0n;
  for (const byte of bytes(Math.ceil(count / 8))) value = (value << 8n) | BigInt(byte);
  return value & ((1n << BigInt(count)) - 1n);
}

const uniform = (): number => Number(bits(53)) * 2 ** -53;

export const webCrypto: Draws = {
  action: uniform,
  rounding: uniform,
  token: () => bytes(16),
  coin: (chance) => bits(63) < chance,
  below: (limit) => {
    // By rejection, hence without bias; a limit is at most 4096.
    for (;;) {
      const value = Number(bits(32));
      if (value < Math.floor(2 ** 32 / limit) * limit) return value % limit;
    }
  },
};
