// `node test/bundle.mjs SOURCE TARGET PLATFORM`: one file of TypeScript with all that it imports.
import { build } from "esbuild";

const [entry, outfile, platform] = process.argv.slice(2);
const format = platform === "node" ? "esm" : "iife";
await build({ entryPoints: [entry], outfile, platform, format, bundle: true, target: "es2022", logLevel: "error" });
