// The package: one minified ES module without dependencies, one for Node's receipts, and types.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const LARGEST = 16 * 1024;

await build({
  entryPoints: ["src/index.ts", "src/node.ts"],
  outdir: "dist",
  bundle: true,
  minify: true,
  format: "esm",
  platform: "neutral",
  external: ["node:*"],
  target: "es2022",
});
execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", "tsconfig.build.json"], { stdio: "inherit" });
const size = gzipSync(readFileSync("dist/index.js"), { level: 9 }).length;
console.log(`dist/index.js: ${size} bytes minified and gzipped`);
if (size >= LARGEST) throw new Error(`more than ${LARGEST} bytes`);
