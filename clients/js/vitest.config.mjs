// Vectors take seconds; on a machine that is busy with other tests, several times as long.
import { fileURLToPath } from "node:url";

const inspect = fileURLToPath(new URL("src/inspect.ts", import.meta.url));
export default { test: { testTimeout: 60_000 }, resolve: { alias: { "capri-device/inspect": inspect } } };
