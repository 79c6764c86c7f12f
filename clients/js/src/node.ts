/** A receipt in a file, for Node. */
import { close, fsync, open } from "node:fs";
import { existsSync } from "node:fs";
import { dirname } from "node:path";
import { promisify } from "node:util";
import type { Receipt } from "./receipts.js";

/** Created once, and on disk before anything is drawn. */
export function fileReceipt(path: string): Receipt {
  return {
    there: () => existsSync(path),
    leave: async () => {
      for (const [target, flags] of [[path, "wx"], [dirname(path), "r"]] as const) {
        let handle: number;
        try {
          handle = await promisify(open)(target, flags, 0o600);
        } catch (problem) {
          if ((problem as NodeJS.ErrnoException).code === "EEXIST") return false;
          throw problem;
        }
        try {
          await promisify(fsync)(handle);
        } finally {
          await promisify(close)(handle);
        }
      }
      return true;
    },
  };
}
