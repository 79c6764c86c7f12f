/** One user's device in the local model. */
import { features } from "./basis.js";
import { type Bundle, openBundle } from "./bundle.js";
import * as core from "./device.js";
import { type Bytes, hex } from "./digests.js";
import { BudgetError, BundleError, DataError, need } from "./errors.js";
import { isBag } from "./header.js";
import { webCrypto } from "./randomness.js";
import type { Receipt } from "./receipts.js";
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
  /** Remembers across restarts that the report was made, and the report. */
  receipt?: Receipt | undefined;
  /** `pending` of a client of the same bundle, to go on with its decision after a reload; needs a receipt. */
  pending?: string | null | undefined;
}

interface Datum {
  bundle: Bundle;
  context: Float64Array;
  action: number;
}

const spent = () => new BudgetError("this device has reported: a second report would spend twice");

/**
 * Context, action and reward stay here; what leaves is one report, private by itself. The client
 * trusts nobody: it works out from the bundle what a report would cost its user and refuses a
 * bundle that asks for more than `epsilon`.
 */
export class LocalClient {
  #bundle: Bundle;
  readonly #epsilon: number;
  readonly #receipt: Receipt | undefined;
  readonly #draws: Draws;
  #reported: boolean;
  #made: Bytes | null;
  #pending: Datum | null = null;

  private constructor(bundle: Bundle, options: Options, left: Bytes | null, draws: Draws) {
    this.#bundle = bundle;
    this.#epsilon = options.epsilon;
    this.#receipt = options.receipt;
    this.#reported = left !== null;
    this.#made = left && core.isReport(left) ? left : null;
    this.#draws = draws;
    if (typeof options.pending === "string") {
      const kept = datumOf(bundle, options.pending, options.receipt);
      if (!left) this.#pending = kept;
    }
  }

  /** Read a bundle, and make sure that a report under it can be afforded. */
  static async open(data: Uint8Array, options: Options): Promise<LocalClient> {
    return LocalClient.openWith(data, options, webCrypto);
  }

  /** With draws of the caller's: for tests and simulations. Anything but Web Crypto protects nobody. */
  static async openWith(data: Uint8Array, options: Options, draws: Draws): Promise<LocalClient> {
    const { epsilon } = options;
    if (!(typeof epsilon === "number" && epsilon > 0 && epsilon < Infinity)) {
      throw new DataError("epsilon must be positive and finite");
    }
    const bundle = affordable(data, epsilon, options.digest);
    return new LocalClient(bundle, options, (await options.receipt?.there()) ?? null, draws);
  }

  /** The epoch this device takes part in. */
  get epoch(): number {
    return this.#bundle.epoch;
  }

  /** Whether the one report was made, and the budget spent. */
  get reported(): boolean {
    return this.#reported;
  }

  /** The one report, to be uploaded again where that failed; null before it, or where its receipt was cut short. */
  get made(): Bytes | null {
    return this.#made;
  }

  /**
   * The decision that waits for its reward, as a text to keep on the device and to open a client with
   * after a reload; null where there is none. It holds the context and the action: it must not leave.
   */
  get pending(): string | null {
    if (!this.#pending) return null;
    const { bundle, context, action } = this.#pending;
    return JSON.stringify({ digest: hex(bundle.digest), context: Array.from(context), action });
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
    const bundle = this.#bundle;
    const row = rowOf(bundle, context);
    const [actionIndex, propensity] = core.decide(bundle, row, this.#draws.action());
    if (!this.#reported) this.#pending = { bundle, context: row, action: actionIndex };
    return {
      epoch: bundle.epoch,
      actionIndex,
      action: features(bundle.actions, row, actionIndex),
      actionName: bundle.actions.names?.[actionIndex] ?? null,
      propensity,
      status: core.usable(row) ? "served" : "invalid",
    };
  }

  /** The 32 bytes to upload. What is no number is no reward, which nobody can tell from a report. */
  async report(reward: number | null): Promise<Bytes> {
    const value = numberOf(reward);
    if (this.#reported) throw spent();
    const datum = this.#pending;
    if (!datum) throw new DataError("there is nothing to report: act comes first");
    // At once, so that a second call meets it while this one waits for its receipt.
    this.#reported = true;
    this.#pending = null;
    const made = core.report(datum.bundle, datum.context, datum.action, value, this.#draws);
    // Kept before it leaves: an upload that fails is one of these bytes again, not a second report.
    if (this.#receipt && !(await this.#receipt.leave(made))) throw spent();
    this.#made = made;
    return made;
  }

  /**
   * Go on with the bundle of a later epoch; true if a datum had to be dropped for it. With `keep` it
   * stays, for a reward that is still to come, and its report answers the old bundle.
   */
  renew(data: Uint8Array, options: { digest?: Uint8Array | undefined; keep?: boolean | undefined } = {}): boolean {
    const renewed = affordable(data, this.#epsilon, options.digest);
    if (renewed.epoch < this.epoch) {
      throw new BundleError(`this bundle is older (epoch ${renewed.epoch}) than the one in use`, "older");
    }
    if (renewed.digest.every((byte, i) => byte === this.#bundle.digest[i])) return false;
    const dropped = this.#pending !== null && !options.keep;
    this.#bundle = renewed;
    if (!options.keep) this.#pending = null;
    return dropped;
  }
}

function affordable(data: Uint8Array, epsilon: number, digest?: Uint8Array): Bundle {
  const bundle = openBundle(data, digest);
  need(keeps(bundle.sphere, epsilon), "this bundle asks for too much: a report costs more than epsilon", "too-costly");
  return bundle;
}

/** A decision that was kept as a text. Only what it is made of is looked at, never a value. */
function datumOf(bundle: Bundle, text: string, receipt: Receipt | undefined): Datum {
  if (!receipt) throw new DataError("a decision that was kept needs a receipt: else it could be reported twice");
  let told: unknown;
  try {
    told = JSON.parse(text);
  } catch {
    told = null;
  }
  const { digest, context, action } = (isBag(told) ? told : {}) as { [name: string]: unknown };
  const row = Array.isArray(context) && context.every((x) => x === null || typeof x === "number") ? context : null;
  const place = Number.isInteger(action) && (action as number) >= 0 && (action as number) < bundle.actions.count;
  if (!row || !place) throw new DataError("this is no decision that a client kept: it is cut short or something else");
  if (digest !== hex(bundle.digest)) {
    throw new DataError("this decision was made under another bundle: open that one, then renew with keep");
  }
  return { bundle, context: rowOf(bundle, row as number[]), action: action as number };
}

function rowOf(bundle: Bundle, context: Context): Float64Array {
  const listed = Array.isArray(context) || ArrayBuffer.isView(context);
  if (!listed && isBag(context) && bundle.schema) return bundle.schema.row(context);
  if (!listed) throw new DataError("a context must be a row of numbers");
  const row = Float64Array.from(context as ArrayLike<number>, numberOf);
  if (row.length !== bundle.contextDimension) {
    throw new DataError(`a context must have ${bundle.contextDimension} numbers, got ${row.length}`);
  }
  return row;
}
