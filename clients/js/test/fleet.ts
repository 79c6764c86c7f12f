/** `node fleet.mjs FOLDER ADDRESS SEED COUNT`: schedules on stores of all kinds, their outcome as JSON. */
import { join } from "node:path";
import { memoryStore } from "../src/index.js";
import { folderStore } from "../src/node.js";
import { schedules } from "./schedules.js";

const [folder, address, seed, count] = process.argv.slice(2) as [string, string, string, string];
const kinds = [(name: string) => folderStore(join(folder, name)), () => memoryStore()];
const told = [];
for (const kind of kinds) told.push(await schedules(Number(seed), Number(count), address, kind));
console.log(JSON.stringify(told));
