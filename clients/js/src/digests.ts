/** SHA-256 and CRC-32, without waiting: Web Crypto's digest is asynchronous and needs HTTPS. */

/** Bytes that can be uploaded: `Uint8Array` up to TypeScript 5.6, `Uint8Array<ArrayBuffer>` from 5.7 on. */
export type Bytes = ReturnType<Uint8ArrayConstructor["of"]>;

export const hex = (bytes: Uint8Array): string => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
export const unhex = (text: string): Bytes => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));

const K = new Int32Array(64);
const START = new Int32Array(8);
{
  // Fractional parts of the cube and square roots of the first primes (FIPS 180-4). Both roots are
  // right to more than the 32 bits that are taken, in any implementation.
  let count = 0;
  for (let n = 2; count < 64; n++) {
    let prime = true;
    for (let d = 2; d * d <= n; d++) if (n % d === 0) prime = false;
    if (!prime) continue;
    const part = (root: number) => Math.floor((root - Math.floor(root)) * 2 ** 32);
    if (count < 8) START[count] = part(Math.sqrt(n)) | 0;
    K[count++] = part(cubeRoot(n)) | 0;
  }
}

function turn(x: number, by: number): number {
  return (x >>> by) | (x << (32 - by));
}

function cubeRoot(n: number): number {
  let x = n / 2;
  for (let i = 0; i < 60; i++) x -= (x * x * x - n) / (3 * x * x);
  return x;
}

/** The SHA-256 of some bytes. */
export function sha256(data: Uint8Array): Bytes {
  const length = data.length;
  const padded = new Uint8Array(((length + 72) >> 6) << 6);
  padded.set(data);
  padded[length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(length / 2 ** 29));
  view.setUint32(padded.length - 4, length << 3);
  const h = START.slice();
  const w = new Int32Array(64);
  for (let start = 0; start < padded.length; start += 64) {
    for (let i = 0; i < 64; i++) {
      if (i < 16) w[i] = view.getInt32(start + 4 * i);
      else {
        const x = w[i - 15]!;
        const y = w[i - 2]!;
        const s0 = turn(x, 7) ^ turn(x, 18) ^ (x >>> 3);
        const s1 = turn(y, 17) ^ turn(y, 19) ^ (y >>> 10);
        w[i] = (w[i - 16]! + s0 + w[i - 7]! + s1) | 0;
      }
    }
    let a = h[0]!, b = h[1]!, c = h[2]!, d = h[3]!, e = h[4]!, f = h[5]!, g = h[6]!, last = h[7]!;
    for (let i = 0; i < 64; i++) {
      const one = (last + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i]! + w[i]!) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      last = g;
      g = f;
      f = e;
      e = (d + one) | 0;
      d = c;
      c = b;
      b = a;
      a = (one + two) | 0;
    }
    h[0] = h[0]! + a;
    h[1] = h[1]! + b;
    h[2] = h[2]! + c;
    h[3] = h[3]! + d;
    h[4] = h[4]! + e;
    h[5] = h[5]! + f;
    h[6] = h[6]! + g;
    h[7] = h[7]! + last;
  }
  const out = new Uint8Array(32);
  const written = new DataView(out.buffer);
  h.forEach((word, i) => written.setInt32(4 * i, word));
  return out;
}

/** CRC-32 as in zlib: against accidents, not against attackers. */
export function crc32(data: Uint8Array): number {
  let crc = -1;
  for (const byte of data) {
    crc ^= byte;
    for (let i = 0; i < 8; i++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}

export function same(left: Uint8Array, right: Uint8Array): boolean {
  return left.length === right.length && left.every((byte, i) => byte === right[i]);
}
