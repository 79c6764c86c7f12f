// `node examples/web/build.mjs FOLDER`: the page with all that it imports, ready to be served.
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const client = resolve(here, "../../clients/js");
const { build } = createRequire(join(client, "package.json"))("esbuild");
const folder = resolve(process.argv[2] ?? "build/web");
mkdirSync(folder, { recursive: true });
// The package as it is published, where an app has it: in a folder of installed packages.
const installed = mkdtempSync(join(tmpdir(), "installed-"));
execFileSync(process.execPath, [join(client, "build.mjs"), join(installed, "capri-device")]);
await build({
  entryPoints: ["page.js", "neighbours.js"].map((name) => join(here, name)),
  outdir: folder,
  bundle: true,
  minify: true,
  format: "esm",
  platform: "browser",
  target: "es2022",
  nodePaths: [installed],
  logLevel: "error",
});
rmSync(installed, { recursive: true });
for (const name of ["index.html", "style.css", "icon.svg"]) cpSync(join(here, name), join(folder, name));
