/** A store in a folder, for Node. */
import { link, mkdir, open, readFile, readdir, rm, truncate } from "node:fs/promises";
import { join } from "node:path";
import type { Store } from "./stores.js";

/** So many numbers stay taken, by empty files: a process that was held up must not take one of them for free. */
const TAKEN = 100;
const told = (problem: unknown) => (problem as NodeJS.ErrnoException).code;

async function synced(path: string, flags: string, text?: string): Promise<void> {
  const file = await open(path, flags, 0o600);
  try {
    if (text !== undefined) await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
}

/**
 * For any number of processes. Every change is a file of the next number, linked into its place: the first one to do so
 * has made it, the others take their step again. A crash leaves what was there, and perhaps a file that nobody reads.
 */
export function folderStore(folder: string): Store {
  const numbers = async () => (await readdir(folder)).filter((name) => /^\d+$/.test(name)).map(Number).sort((a, b) => b - a);
  return {
    change: async (names, step) => {
      await mkdir(folder, { recursive: true, mode: 0o700 });
      for (;;) {
        const [latest = 0] = await numbers();
        let texts: { [name: string]: string } = {};
        try {
          const text = latest ? await readFile(join(folder, String(latest)), "utf8") : "{}";
          if (!text) continue; // another process has made the next change
          texts = JSON.parse(text);
        } catch (problem) {
          throw new Error(`${folder} is damaged: nothing was reported`, { cause: problem });
        }
        const found = names.map((name) => texts[name] ?? null);
        const result = step(found);
        names.forEach((name, i) => (found[i] == null ? delete texts[name] : (texts[name] = found[i]!)));
        const draft = join(folder, `${crypto.randomUUID()}.new`);
        await synced(draft, "wx", JSON.stringify(texts));
        try {
          await link(draft, join(folder, String(latest + 1)));
        } catch (problem) {
          if (told(problem) === "EEXIST") continue;
          throw problem;
        } finally {
          await rm(draft);
        }
        await synced(folder, "r");
        if (latest) await truncate(join(folder, String(latest)));
        if (latest > TAKEN) await rm(join(folder, String(latest - TAKEN)), { force: true });
        return result;
      }
    },
  };
}
