/** Neighbours in a thread of their own: each decides on a device and makes one report. */
import { decide, openBundle, report, webCrypto } from "capri-device/inspect";
import { liked } from "./books.js";

/**
 * What `count` neighbours upload, and how many of them liked what they were shown. They share one
 * open bundle, which saves time and tells none of them of the others; their draws are Web Crypto's.
 */
export function neighbours(data, count) {
  const bundle = openBundle(data);
  const reports = new Uint8Array(32 * count);
  let happy = 0;
  for (let i = 0; i < count; i++) {
    const reader = Float64Array.of(Math.random(), Math.random());
    const [book] = decide(bundle, reader, webCrypto.action());
    const reward = Math.random() < liked(reader, book) ? 1 : 0;
    happy += reward;
    reports.set(report(bundle, reader, book, reward, webCrypto), 32 * i);
  }
  return { reports, happy };
}

if (typeof WorkerGlobalScope !== "undefined" && self instanceof WorkerGlobalScope) {
  self.onmessage = ({ data }) => self.postMessage(neighbours(data.bundle, data.count));
}
