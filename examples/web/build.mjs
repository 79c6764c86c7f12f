// `node examples/web/build.mjs FOLDER`: the page with all that it imports, ready to be served.
import { cpSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const client = resolve(here, "../../clients/js");
const { build } = createRequire(join(client, "package.json"))("esbuild");
const folder = resolve(process.argv[2] ?? "build/web");
mkdirSync(folder, { recursive: true });
await build({
  entryPoints: ["page.js", "neighbours.js"].map((name) => join(here, name)),
  outdir: folder,
  bundle: true,
  minify: true,
  format: "esm",
  platform: "browser",
  target: "es2022",
  alias: { "capri-device": join(client, "src/index.ts") },
  logLevel: "error",
});
for (const name of ["index.html", "style.css", "icon.svg"]) cpSync(join(here, name), join(folder, name));
