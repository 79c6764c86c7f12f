/** What the client is made of, for pages that show what a report gives away and for simulations. Nothing here keeps a budget. */
export { openBundle, type Bundle } from "./bundle.js";
export { decide, encode, lawOf, report } from "./device.js";
export { Directions } from "./directions.js";
export { webCrypto } from "./randomness.js";
export { nearest } from "./sphere.js";
