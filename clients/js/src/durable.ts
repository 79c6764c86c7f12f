/**
 * One person's device at one policy, across reloads, crashes, tabs and years.
 *
 * All that must not be torn apart is one text of the store: the decision that waits, the report that was made, whether
 * it was answered, and what all policies have cost. Each step reads it, changes it and keeps it, or does nothing.
 */
import type { Bundle } from "./bundle.js";
import { type Context, type Decision, affordable, decided, newer, rowOf, spent } from "./client.js";
import * as core from "./device.js";
import { type Bytes, hex, sha256, unhex } from "./digests.js";
import { BudgetError, DataError, need } from "./errors.js";
import { webCrypto } from "./randomness.js";
import { numberOf } from "./schema.js";
import { type Draws, costOf } from "./sphere.js";
import { type Store, databaseStore } from "./stores.js";

/** What a person allows for all policies of a device together, in any period of so many days. */
export interface Allowance {
  epsilon: number;
  days: number;
}

export interface Terms {
  /** What one report may cost: pure, delta = 0. */
  epsilon: number;
  /** Who is reported to. A device reports once for each policy, person and origin of its store. */
  policy: string;
  /** Where several people share a device. */
  person?: string | undefined;
  allowance: Allowance;
  /** Uploads a report and tells its status; anything else, and whatever it throws, is no answer. See `uploadTo`. */
  send: (report: Bytes) => Promise<unknown>;
  /** Where the aggregator asks for tickets: gets the 16 bytes of salt for a commitment of 32; whatever it throws is none yet. */
  ticket?: ((commitment: Bytes) => Promise<Uint8Array>) | undefined;
  /** Digests of all bundles, oldest first, as somebody else keeps `/v1/digests`. No report is made to a bundle that is not there. */
  log?: (() => Promise<readonly string[]>) | undefined;
  store?: Store | undefined;
  /** The digest of the bundle as published elsewhere. */
  digest?: Uint8Array | undefined;
  /** Asked before a report is made; where it says no the decision is forgotten. */
  consent?: (() => boolean | Promise<boolean>) | undefined;
  /** The share of devices that report at all, drawn once on each device. */
  share?: number | undefined;
  /** Seconds after a decision before which its report does not leave, so that its time tells nothing of the reward. */
  delay?: number | undefined;
  /** Milliseconds of a clock. */
  now?: (() => number) | undefined;
}

/** What is kept of a policy. `answer`: what became of its report. */
interface Course {
  takesPart: boolean;
  digest?: string;
  context?: (number | null)[];
  action?: number;
  slot: 0 | 1;
  /** Secret, salt once there is one, and the digest that it is for. */
  ticket?: [string, string | null, string];
  /** How many entries the log had, and their SHA-256. */
  log?: [number, string];
  report?: string;
  answer?: string;
  /** Not before, and how often it was tried until when. */
  first: number;
  tries: number;
  due: number;
}

/** What is kept of a person: `time` passes as far as `seen` clocks can be believed. */
interface Kept {
  time: number;
  seen: number;
  /** Costs in millionths. */
  spent: [time: number, cost: number, policy: string][];
  policies: { [name: string]: Course };
}

const DAY = 86_400_000;
const SALT = 16;
const STATUSES = ["accepted", "replayed", "stale", "unknown", "malformed"];
/** Longest time between two uploads, about an hour: 2^12 seconds. */
const MOST_DOUBLINGS = 12;

/** An allowance in millionths, rounded down; and an epsilon of millionths in words. */
const allowed = (epsilon: number) => Math.floor(1e6 * epsilon + 1e-3);
const plain = (cost: number) => String(Number((cost / 1e6).toFixed(2)));

const base64 = (data: Uint8Array): string => {
  let text = "";
  for (const byte of data) text += String.fromCharCode(byte);
  return btoa(text);
};

/** Uploads by POST, which goes on when the page is left; a service that does not answer in time gives no answer. */
export function uploadTo(address: string, seconds = 30): (report: Bytes) => Promise<unknown> {
  return async (report) => {
    const answer = await fetch(address, {
      method: "POST",
      headers: { "Content-Type": "application/octet-stream" },
      credentials: "omit",
      keepalive: true,
      signal: AbortSignal.timeout(1000 * seconds),
      body: report,
    });
    return answer.ok ? ((await answer.json()) as { status?: unknown }).status : null;
  };
}

export class DurableClient {
  #bundle: Bundle;
  #data: Uint8Array;
  readonly #terms: Terms;
  readonly #store: Store;
  readonly #draws: Draws;
  readonly #names: readonly [string, string, string];
  readonly #now: () => number;
  #last: string | null = null;
  #made: () => void = () => undefined;

  private constructor(data: Uint8Array, terms: Terms, draws: Draws) {
    const { epsilon, days } = terms.allowance;
    if (!(epsilon > 0 && days > 0 && days < Infinity)) throw new DataError("an allowance is epsilon and days above 0");
    const share = terms.share ?? 1;
    if (!(share >= 0 && share <= 1)) throw new DataError("a share lies in 0 to 1");
    this.#bundle = affordable(data, terms.epsilon, terms.digest);
    this.#data = data;
    this.#terms = terms;
    this.#draws = draws;
    this.#store = terms.store ?? databaseStore();
    this.#now = terms.now ?? Date.now;
    const person = JSON.stringify(terms.person ?? "");
    const bundles = JSON.stringify([terms.person ?? "", terms.policy]);
    this.#names = [person, `${bundles}0`, `${bundles}1`];
  }

  /** Read a bundle, and take up what the device has kept. */
  static async open(data: Uint8Array, terms: Terms): Promise<DurableClient> {
    return DurableClient.openWith(data, terms, webCrypto);
  }

  /** With draws of the caller's: for tests and simulations. Anything but Web Crypto protects nobody. */
  static async openWith(data: Uint8Array, terms: Terms, draws: Draws): Promise<DurableClient> {
    const client = new DurableClient(data, terms, draws);
    await client.#step(() => undefined);
    return client;
  }

  /** The epoch of the bundle that decides. */
  get epoch(): number {
    return this.#bundle.epoch;
  }

  /** What the actions are called; null where they have no names. */
  get actionNames(): readonly string[] | null {
    return this.#bundle.actions.names;
  }

  /** How likely each action is at a context. Nothing is drawn, nothing leaves. */
  probabilities(context: Context): Float64Array {
    return core.lawOf(this.#bundle, rowOf(this.#bundle, context));
  }

  /** Decide, and keep the decision with its bundle until `report`, however many pages later. A newer one takes its place. */
  async act(context: Context): Promise<Decision> {
    const [decision, row] = decided(this.#bundle, context, this.#draws);
    await this.#step((course, _, texts) => {
      if (!course.takesPart || course.report || course.answer) return;
      const digest = hex(this.#bundle.digest);
      if (course.digest !== digest) {
        delete course.ticket; // it is for one bundle
        // Into the slot that no decision needs: a store that was interrupted still has the other one.
        course.slot = course.slot ? 0 : 1;
        texts[1 + course.slot] = base64(this.#data);
      }
      course.digest = digest;
      course.context = Array.from(row, (x) => (Number.isFinite(x) ? x : null));
      course.action = decision.actionIndex;
      course.first = this.#now() + 1000 * (this.#terms.delay ?? 0);
      if (this.#terms.ticket) course.ticket ??= [hex(this.#draws.token()), null, digest];
    });
    await this.#fetchSalt();
    return decision;
  }

  /** Ask for the ticket of the decision that waits, if it has none yet. */
  async #fetchSalt(): Promise<void> {
    const found = this.#terms.ticket && (await this.#step((course) => course.ticket));
    if (!found || found[1] !== null) return;
    const [secret, , digest] = found;
    try {
      const salt = await this.#terms.ticket!(sha256(unhex(secret + digest.slice(0, 16))));
      if (salt.length !== SALT) return;
      await this.#step((course) => {
        if (course.ticket?.[0] === secret) course.ticket[1] = hex(salt);
      });
    } catch {
      // Asked for again with the report.
    }
  }

  /**
   * Make the report on the decision that waits, and keep it for `flush`; false where there is no consent or the device
   * takes no part. Nothing is made that would exceed the allowance.
   */
  async report(reward: number | null): Promise<boolean> {
    const value = numberOf(reward);
    const agreed = (await this.#terms.consent?.()) ?? true;
    await this.#fetchSalt();
    const listed = this.#terms.log && (await this.#terms.log().catch(() => null));
    const made = await this.#step((course, kept, texts) => {
      if (course.report || course.answer) throw spent();
      if (!course.takesPart) return false;
      if (course.digest === undefined) throw new DataError("there is nothing to report: act comes first");
      if (this.#terms.log) compare(listed, course);
      if (agreed) {
        const bundle = this.#bundleOf(course.digest, texts[1 + course.slot]!);
        this.#charge(kept, costOf(bundle.sphere));
        const context = Float64Array.from(course.context!, numberOf);
        const [secret, draws] = this.#ticketed(course);
        course.report = hex(core.report(bundle, context, course.action!, value, draws)) + secret;
      }
      for (const name of ["digest", "context", "action", "ticket"] as const) delete course[name];
      texts[1] = texts[2] = null;
      return agreed;
    });
    if (made) this.#made();
    return made;
  }

  /** The secret that goes with the report, and draws with the token of its ticket. */
  #ticketed({ ticket }: Course): [string, Draws] {
    if (!this.#terms.ticket) return ["", this.#draws];
    if (!ticket?.[1]) throw new DataError("there is no ticket yet: nothing was reported. Report again later");
    const token = sha256(unhex(ticket[0] + ticket[1])).slice(0, SALT);
    return [ticket[0], { ...this.#draws, token: () => token }];
  }

  /**
   * Upload the report if one waits and its time has come; its status once the service has answered, null before. Call it
   * as often as you like: the same bytes leave each time, and a service counts them once. `again`: do not wait for the
   * time of the next try, which doubles up to an hour.
   */
  async flush({ again = false } = {}): Promise<string | null> {
    return (await this.#flush(again))[0];
  }

  /** What the service said, and milliseconds until the next try. */
  async #flush(again: boolean): Promise<[answer: string | null, wait: number]> {
    const told = await this.#step((course) => {
      const now = this.#now();
      // A clock may have been set back: never longer than what was meant.
      course.due = Math.min(course.due, now + 1500 * 2 ** MOST_DOUBLINGS);
      course.first = Math.min(course.first, now + 1000 * (this.#terms.delay ?? 0));
      if (!course.report) return { report: null, answer: course.answer ?? null, wait: Infinity };
      const wait = Math.max(course.first, again ? 0 : course.due) - now;
      if (wait > 0) return { report: null, answer: null, wait };
      course.due = now + 1000 * 2 ** Math.min(course.tries++, MOST_DOUBLINGS) * (0.5 + this.#draws.rounding());
      return { report: course.report, answer: null, wait: course.due - now };
    });
    if (told.report === null) return [told.answer, told.wait];
    let status: unknown;
    try {
      status = await this.#terms.send(unhex(told.report));
    } catch {
      status = null;
    }
    if (!STATUSES.includes(status as string)) return [null, told.wait];
    const answer = await this.#step((course) => {
      if (course.report === told.report) {
        delete course.report;
        course.answer = status as string;
      }
      return course.answer ?? null;
    });
    return [answer, Infinity];
  }

  /** Flush now, when a report is made, when the network is back and when the page is shown or left. Call what it returns to end it. */
  watch(): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let ended = false;
    const flush = async (again: boolean) => {
      clearTimeout(timer);
      const [, wait] = await this.#flush(again).catch(() => [null, 60_000] as const);
      if (!ended && wait < Infinity) timer = setTimeout(flush, wait, false);
    };
    const seen = () => void flush(false);
    const online = () => void flush(true);
    const page = globalThis.document as Document | undefined;
    globalThis.addEventListener?.("online", online);
    page?.addEventListener("visibilitychange", seen);
    this.#made = seen;
    seen();
    return () => {
      ended = true;
      clearTimeout(timer);
      this.#made = () => undefined;
      globalThis.removeEventListener?.("online", online);
      page?.removeEventListener("visibilitychange", seen);
    };
  }

  /** Decide by the bundle of a later epoch; a decision that waits is reported under its own. */
  renew(data: Uint8Array, digest?: Uint8Array): void {
    this.#bundle = newer(this.#bundle, affordable(data, this.#terms.epsilon, digest));
    this.#data = data;
  }

  /** Where the report stands: "none", "waiting" for its reward, "made", or what the service said of it. */
  async status(): Promise<string> {
    return this.#step((course) => course.answer ?? (course.report ? "made" : course.digest ? "waiting" : "none"));
  }

  /** What this device has spent, in words for the person whose device it is. */
  async spending(): Promise<string> {
    const { epsilon, days } = this.#terms.allowance;
    return this.#step((_, kept) => {
      const recent = this.#recent(kept);
      const cost = recent.reduce((sum, [, each]) => sum + each, 0);
      const who = recent.length ? ` (${recent.map(([, each, policy]) => `${policy}: ${plain(each)}`).join(", ")})` : "";
      const reports = recent.length === 1 ? "1 private report" : `${recent.length} private reports`;
      return `In the last ${days} days this device has made ${reports}${who}, at a cost of ${plain(cost)} of the ${plain(allowed(epsilon))} that you allow.`;
    });
  }

  /** One step on all that is kept: takes up, changes, keeps. */
  async #step<T>(change: (course: Course, kept: Kept, texts: (string | null)[]) => T): Promise<T> {
    const [told, text] = await this.#store.change(this.#names, (texts) => {
      // Gone while this page is open: it remembers, and a second report is not made.
      const kept = read((texts[0] ??= this.#last));
      const now = this.#now();
      kept.time += Math.min(Math.max(now - kept.seen, 0), (DAY * this.#terms.allowance.days) / 4);
      // A clock that goes back frees nothing when it comes again.
      kept.seen = Number.isFinite(kept.seen) ? Math.max(kept.seen, now) : now;
      const takesPart = () => this.#draws.action() < (this.#terms.share ?? 1);
      const course = (kept.policies[this.#names[1]] ??= { takesPart: takesPart(), slot: 0, first: 0, tries: 0, due: 0 });
      const told = change(course, kept, texts);
      texts[0] = JSON.stringify(kept);
      return [told, texts[0]] as const;
    });
    this.#last = text;
    return told;
  }

  #recent(kept: Kept): Kept["spent"] {
    return kept.spent.filter(([time]) => kept.time - time < DAY * this.#terms.allowance.days);
  }

  #charge(kept: Kept, cost: number): void {
    const { epsilon, days } = this.#terms.allowance;
    const already = this.#recent(kept).reduce((sum, [, each]) => sum + each, 0);
    if (already + cost > allowed(epsilon)) {
      throw new BudgetError(
        `a report costs ${plain(cost)}, and ${plain(already)} of ${epsilon} are spent in ${days} days: nothing was reported`,
      );
    }
    kept.spent.push([kept.time, cost, this.#terms.policy]);
  }

  #bundleOf(digest: string, kept: string | null): Bundle {
    if (digest === hex(this.#bundle.digest)) return this.#bundle;
    if (!kept) throw new DataError("the bundle of this decision is gone: decide again");
    return affordable(Uint8Array.from(atob(kept), (letter) => letter.charCodeAt(0)), this.#terms.epsilon, unhex(digest));
  }
}

/** Refuse a bundle that others are not shown; remember what the log has said. */
function compare(listed: unknown, course: Course): void {
  if (!Array.isArray(listed) || !listed.every((each) => typeof each === "string")) {
    throw new DataError("there is no log of bundles now: nothing was reported. Report again later");
  }
  const digest = (count: number) => hex(sha256(new TextEncoder().encode(listed.slice(0, count).join(""))));
  const [count, seen] = course.log ?? [0, digest(0)];
  const whole = listed.length >= count && digest(count) === seen && listed.includes(course.digest!);
  need(whole, "the public log does not have this bundle, or has lost one: nothing was reported", "other-bundle");
  course.log = [listed.length, digest(listed.length)];
}

/** What a store holds of a person. A text that is none of ours may hide a report, so nothing is made beside it. */
function read(text: string | null): Kept {
  if (text === null) return { time: 0, seen: Infinity, spent: [], policies: {} };
  try {
    const kept = JSON.parse(text) as Kept;
    if (Array.isArray(kept.spent) && kept.policies && Number.isFinite(kept.time)) return kept;
  } catch {
    // Below.
  }
  throw new DataError("what this device has kept is damaged: it reports no more, until its store is deleted");
}
