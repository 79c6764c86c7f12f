/** Why a bundle is refused: the same words in every client, see docs/reference/wire.md. */
export type Reason =
  | "not-a-bundle"
  | "too-large"
  | "version"
  | "damaged"
  | "other-bundle"
  | "malformed"
  | "too-much-work"
  | "too-costly"
  | "older";

/** A bundle that this device does not answer. Nothing was reported. */
export class BundleError extends Error {
  override name = "BundleError";
  constructor(
    message: string,
    readonly reason: Reason = "malformed",
  ) {
    super(message);
  }
}

/** A second report would spend the budget twice. */
export class BudgetError extends Error {
  override name = "BudgetError";
}

/** Public things that are wrong: a type, a length, an order of calls. Never a value. */
export class DataError extends Error {
  override name = "DataError";
}

/** Refuse a bundle unless this holds. */
export function need(holds: unknown, message: string, reason: Reason = "malformed"): asserts holds {
  if (!holds) throw new BundleError(reason === "malformed" ? `the bundle is malformed: ${message}` : message, reason);
}
