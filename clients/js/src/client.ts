/** One user's device in the local model. */
import { features } from "./basis.js";
import { type Bundle, openBundle } from "./bundle.js";
import * as core from "./device.js";
import type { Bytes } from "./digests.js";
import { BudgetError, DataError, need } from "./errors.js";
import { isBag } from "./header.js";
import { webCrypto } from "./randomness.js";
import { numberOf } from "./schema.js";
import { type Draws, keeps } from "./sphere.js";

/** A row of numbers, or a record of the bundle's schema. */
export type Context = ArrayLike<number | null> | { [column: string]: unknown };

export interface Decision {
  epoch: number;
  actionIndex: number;
  /** The features of the action. */
  action: Float64Array;
  actionName: string | null;
  propensity: number;
  /** "invalid" where the context is no row of numbers: played uniformly, and counts for nothing. */
  status: "served" | "invalid";
}

export interface Options {
  /** What this user is willing to spend, in all: the client reports once. Pure, delta = 0. */
  epsilon: number;
  /** The digest of the bundle as published elsewhere: 32 bytes. */
  digest?: Uint8Array | undefined;
}

interface Datum {
  bundle: Bundle;
  context: Float64Array;
  action: number;
}

export const spent = () => new BudgetError("this device has reported: a second report would spend twice");

/**
 * Context, action and reward stay here; what leaves is one report, private by itself. The client
 * trusts nobody: it works out from the bundle what a report would cost its user and refuses a
 * bundle that asks for more than `epsilon`.
 */
export class LocalClient {
  #bundle: Bundle;
  readonly #epsilon: number;
  readonly #draws: Draws;
  #reported = false;
  #pending: Datum | null = null;

  private constructor(bundle: Bundle, epsilon: number, draws: Draws) {
    this.#bundle = bundle;
    this.#epsilon = epsilon;
    this.#draws = draws;
  }

  /** Read a bundle, and make sure that a report under it can be afforded. */
  static async open(data: Uint8Array, options: Options): Promise<LocalClient> {
    return LocalClient.openWith(data, options, webCrypto);
  }

  /** With draws of the caller's: for tests and simulations. Anything but Web Crypto protects nobody. */
  static async openWith(data: Uint8Array, options: Options, draws: Draws): Promise<LocalClient> {
    return new LocalClient(affordable(data, options.epsilon, options.digest), options.epsilon, draws);
  }

  /** The epoch this device takes part in. */
  get epoch(): number {
    return this.#bundle.epoch;
  }

  /** Whether the one report was made, and the budget spent. */
  get reported(): boolean {
    return this.#reported;
  }

  /** What the actions are called; null where they have no names. */
  get actionNames(): readonly string[] | null {
    return this.#bundle.actions.names;
  }

  /** How likely each action is at a context: a public law, computed here. Nothing is drawn, nothing leaves. */
  probabilities(context: Context): Float64Array {
    return core.lawOf(this.#bundle, rowOf(this.#bundle, context));
  }

  /** Decide here. No cell is refused, whatever its type; another length is. */
  act(context: Context): Decision {
    const [decision, row] = decided(this.#bundle, context, this.#draws);
    if (!this.#reported) this.#pending = { bundle: this.#bundle, context: row, action: decision.actionIndex };
    return decision;
  }

  /**
   * The 32 bytes to upload, once. What is no number is no reward, which nobody can tell from a report. Lost on the way?
   * Upload the same bytes again, never make new ones; a `DurableClient` does so.
   */
  async report(reward: number | null): Promise<Bytes> {
    const value = numberOf(reward);
    if (this.#reported) throw spent();
    const datum = this.#pending;
    if (!datum) throw new DataError("there is nothing to report: act comes first");
    this.#reported = true;
    this.#pending = null;
    return core.report(datum.bundle, datum.context, datum.action, value, this.#draws);
  }

  /**
   * Go on with the bundle of a later epoch; true if a datum had to be dropped for it. With `keep` it
   * stays, for a reward that is still to come, and its report answers the old bundle.
   */
  renew(data: Uint8Array, options: { digest?: Uint8Array | undefined; keep?: boolean | undefined } = {}): boolean {
    const renewed = newer(this.#bundle, affordable(data, this.#epsilon, options.digest));
    if (renewed.digest.every((byte, i) => byte === this.#bundle.digest[i])) return false;
    const dropped = this.#pending !== null && !options.keep;
    this.#bundle = renewed;
    if (!options.keep) this.#pending = null;
    return dropped;
  }
}

/** A bundle that was read, under which a report costs at most epsilon. */
export function affordable(data: Uint8Array, epsilon: number, digest?: Uint8Array): Bundle {
  if (!(typeof epsilon === "number" && epsilon > 0 && epsilon < Infinity)) {
    throw new DataError("epsilon must be positive and finite");
  }
  const bundle = openBundle(data, digest);
  need(keeps(bundle.sphere, epsilon), "this bundle asks for too much: a report costs more than epsilon", "too-costly");
  return bundle;
}

/** The later of two bundles, which the second must be. */
export function newer(bundle: Bundle, renewed: Bundle): Bundle {
  need(renewed.epoch >= bundle.epoch, `this bundle is older (epoch ${renewed.epoch}) than the one in use`, "older");
  return renewed;
}

/** A decision, and the row of numbers that it was made for. */
export function decided(bundle: Bundle, context: Context, draws: Draws): [Decision, Float64Array] {
  const row = rowOf(bundle, context);
  const [actionIndex, propensity] = core.decide(bundle, row, draws.action());
  const decision: Decision = {
    epoch: bundle.epoch,
    actionIndex,
    action: features(bundle.actions, row, actionIndex),
    actionName: bundle.actions.names?.[actionIndex] ?? null,
    propensity,
    status: core.usable(row) ? "served" : "invalid",
  };
  return [decision, row];
}

export function rowOf(bundle: Bundle, context: Context): Float64Array {
  const listed = Array.isArray(context) || ArrayBuffer.isView(context);
  if (!listed && isBag(context) && bundle.schema) return bundle.schema.row(context);
  if (!listed) throw new DataError("a context must be a row of numbers");
  const row = Float64Array.from(context as ArrayLike<number>, numberOf);
  if (row.length !== bundle.contextDimension) {
    throw new DataError(`a context must have ${bundle.contextDimension} numbers, got ${row.length}`);
  }
  return row;
}
