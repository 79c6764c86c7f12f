/** A receipt in a file, for Node. */
import { open, readFile } from "node:fs/promises";
import { dirname } from "node:path";
import type { Receipt } from "./receipts.js";

const told = (problem: unknown) => (problem as NodeJS.ErrnoException).code;

/** Created once with the report in it, and on disk before the report leaves. */
export function fileReceipt(path: string): Receipt {
  return {
    there: async () => {
      try {
        return new Uint8Array(await readFile(path));
      } catch (problem) {
        if (told(problem) === "ENOENT") return null;
        throw problem;
      }
    },
    leave: async (report) => {
      try {
        for (const [target, flags] of [[path, "wx"], [dirname(path), "r"]] as const) {
          const file = await open(target, flags, 0o600);
          try {
            if (target === path) await file.writeFile(report);
            await file.sync();
          } finally {
            await file.close();
          }
        }
        return true;
      } catch (problem) {
        if (told(problem) === "EEXIST") return false;
        throw problem;
      }
    },
  };
}
