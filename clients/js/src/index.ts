export { type Context, type Decision, LocalClient, type Options } from "./client.js";
export type { Bytes } from "./digests.js";
export { BudgetError, BundleError, DataError, type Reason } from "./errors.js";
export { databaseReceipt, type Receipt, storageReceipt } from "./receipts.js";
export type { Draws } from "./sphere.js";
