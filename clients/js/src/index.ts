export { type Context, type Decision, LocalClient, type Options } from "./client.js";
export { type Bytes } from "./digests.js";
export { type Allowance, DurableClient, type Terms, uploadTo } from "./durable.js";
export { BudgetError, BundleError, DataError, type Reason } from "./errors.js";
export type { Draws } from "./sphere.js";
export { databaseStore, memoryStore, type Store } from "./stores.js";
