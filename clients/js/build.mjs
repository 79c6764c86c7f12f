// `node build.mjs [FOLDER]`: the package, here or as a whole in a folder. Minified modules without dependencies, for import and for
// require, with types and source maps.
import { execFileSync } from "node:child_process";
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const folder = resolve(process.argv[2] ?? here);
const dist = join(folder, "dist");
const LARGEST = 16 * 1024;
const entries = ["index", "node", "inspect"];

for (const [format, outdir] of [["esm", dist], ["cjs", join(dist, "cjs")]]) {
  await build({
    absWorkingDir: here,
    entryPoints: entries.map((name) => `src/${name}.ts`),
    outdir,
    format,
    bundle: true,
    minify: true,
    sourcemap: true,
    platform: "neutral",
    external: ["node:*"],
    target: "es2022",
  });
  const types = ["node_modules/typescript/bin/tsc", "-p", "tsconfig.build.json", "--outDir", outdir];
  execFileSync(process.execPath, types, { stdio: "inherit", cwd: here });
}
writeFileSync(join(dist, "cjs", "package.json"), '{ "type": "commonjs" }\n');
cpSync(join(here, "../../LICENSE"), join(dist, "LICENSE"));
if (folder !== here) for (const name of ["package.json", "README.md"]) cpSync(join(here, name), join(folder, name));
const size = gzipSync(readFileSync(join(dist, "index.js")), { level: 9 }).length;
console.log(`dist/index.js: ${size} bytes minified and gzipped`);
if (size >= LARGEST) throw new Error(`more than ${LARGEST} bytes`);
