/** Reading a bundle that comes from somebody the device does not trust. */
import { type Actions, type Basis, basisOf, features, identity, times } from "./basis.js";
import { same, sha256 } from "./digests.js";
import { dot } from "./directions.js";
import { BundleError, need } from "./errors.js";
import { type Bag, type Numbers, field, has, number, readArrays, readHeader, taken, whole } from "./header.js";
import { type Conduct, conductOf } from "./law.js";
import { scaleOf } from "./scale.js";
import { type Schema, schemaOf } from "./schema.js";
import { type Sphere, checkSphere } from "./sphere.js";

/** Of bundles and of reports: one version, and no other is read. */
export const VERSION = 4;
const MAGIC = "CAPRI-BUNDLE";
const HEAD = 18;
const DIGEST = 32;
const LARGEST = 2 ** 26;
const LARGEST_HEADER = 2 ** 17;
const MOST_DIRECTIONS = 2 ** 21;
const MOST_WORK = 2 ** 27;
const PLAN = [
  "epoch", "length", "tau", "sigma_max", "value_bound", "clip_norm", "moment_share", "tail_share",
];

/** A bundle that was read, with all that a report needs. */
export interface Bundle {
  digest: Uint8Array;
  epoch: number;
  length: number;
  actions: Actions;
  basis: Basis;
  conduct: Conduct;
  contextDimension: number;
  rewardBound: number;
  learnt: (reward: number) => number;
  missingReward: number;
  schema: Schema | null;
  whitening: Numbers;
  baseline: Float64Array | null;
  valueBound: number;
  clipNorm: number;
  momentShare: number;
  tailShare: number;
  step: number;
  normLimit: number;
  sphere: Sphere;
}

export function openBundle(data: unknown, digest?: Uint8Array): Bundle {
  need(data instanceof Uint8Array, "a bundle is a Uint8Array", "not-a-bundle");
  need(data.length <= LARGEST, `a bundle has at most ${LARGEST} bytes`, "too-large");
  const named = [...MAGIC].every((letter, i) => data[i] === letter.charCodeAt(0));
  need(data.length >= HEAD + DIGEST && named, "this is not a capri bundle, or it was cut short", "not-a-bundle");
  const view = new DataView(data.buffer, data.byteOffset, data.length);
  const version = view.getUint16(12, true);
  need(version === VERSION, `the bundle has format version ${version}, this client reads ${VERSION}`, "version");
  const end = data.length - DIGEST;
  const found = data.slice(end);
  need(same(sha256(data.subarray(0, end)), found), "the bundle is damaged: its digest does not match", "damaged");
  need(!digest || same(digest, found), "this is another bundle than the one expected", "other-bundle");
  try {
    return checked(data, view.getUint32(14, true), end, found);
  } catch (problem) {
    if (problem instanceof BundleError) throw problem;
    throw new BundleError("the bundle is malformed");
  }
}

function checked(data: Uint8Array, length: number, end: number, digest: Uint8Array): Bundle {
  need(length <= Math.min(LARGEST_HEADER, end - HEAD), "its header does not fit");
  const start = HEAD + length;
  const header = readHeader(data.subarray(HEAD, start));
  const arrays = readArrays(header["arrays"], data, start, end);
  const actions = actionsOf(header, arrays);
  const contextDimension = whole(field(header, "context_dimension"), "context_dimension");
  const basis = basisOf(header, arrays, actions, contextDimension);
  const scale = scaleOf(header);
  const rewardBound = scale.bound;

  const plan = field(header, "plan") as Bag;
  need(Object.keys(plan).sort().join() === [...PLAN].sort().join(), "a plan");
  const grid = field(header, "grid") as unknown[];
  need(grid.length === 2, "a grid");
  const valueBound = number(plan["value_bound"], "value_bound", 1e-60, 2 * rewardBound);
  const clipNorm = number(plan["clip_norm"], "clip_norm", 1e-60, 1e60);
  const normLimit = whole(grid[1], "norm_limit", 2 ** 31 - 1);
  const step = number(grid[0], "step", 1e-200, 1e200);
  const filled = (valueBound * clipNorm) / step / normLimit;
  need(filled >= 0.5 && filled <= 1, "contributions do not fit their grid");
  const momentShare = number(plan["moment_share"], "moment_share", 0, 0.5);
  const tailShare = number(plan["tail_share"], "tail_share", 0, 0.5);
  need(momentShare || !tailShare, "a tail share needs a moment share");
  const sphere = checkSphere(field(header, "sphere") as unknown[]);
  const matrix = taken(arrays, "whitening", basis.rank, -1);
  const baseline = arrays.has("baseline") ? taken(arrays, "baseline", basis.width).data : null;
  number(plan["tau"], "tau", 1e-300, 1e300);
  number(plan["sigma_max"], "sigma_max", 0, 1e300);
  const schema = has(header, "schema") && header["schema"] !== null ? schemaOf(header["schema"] as Bag) : null;
  need(!schema || schema.dimension === contextDimension, "its schema makes rows of another size");
  const conduct = conductOf(field(header, "conduct") as Bag, arrays, basis, actions.count);
  const { limits, draws } = conduct;
  need(!limits || limits.columns <= contextDimension, "a rule is about a column that is not there");
  const none = Math.min(Math.max(0, scale.low), scale.high);
  const missing = has(header, "missing_reward") ? header["missing_reward"] : none;
  const bundle: Bundle = {
    digest,
    epoch: whole(plan["epoch"], "epoch", Number.MAX_SAFE_INTEGER),
    length: whole(plan["length"], "length", Number.MAX_SAFE_INTEGER),
    actions,
    basis,
    conduct,
    contextDimension,
    rewardBound,
    missingReward: number(missing, "missing_reward", scale.low, scale.high),
    learnt: scale.learnt,
    schema,
    whitening: matrix,
    baseline,
    valueBound,
    clipNorm,
    momentShare,
    tailShare,
    step,
    normLimit,
    sphere,
  };
  const whitened = matrix.shape[1]!;
  const work = "the bundle asks for more work than a device should do";
  need(actions.count * draws * (limits?.rounds ?? 1) <= MOST_WORK, work, "too-much-work");
  need(basis.feasible(conduct.draws, whitened), work, "too-much-work");
  need(sphere.candidates * sphere.dimension <= MOST_DIRECTIONS, work, "too-much-work");
  const dimension = whitened + (momentShare > 0 ? 1 : 0) + (tailShare > 0 ? 1 : 0);
  need(sphere.dimension === dimension, "the sphere has another dimension");
  bundle.whitening = basis.whitening(matrix);
  tryAtZero(bundle);
  return bundle;
}

function actionsOf(header: Bag, arrays: ReturnType<typeof readArrays>): Actions {
  const varying = field(header, "varying_actions") as unknown[] | null;
  if (varying) {
    need(varying.length === 2, "varying actions");
    return { count: whole(varying[0], "count"), dimension: whole(varying[1], "dimension"), rows: null, names: null };
  }
  let rows = arrays.get("actions");
  if (!rows && has(header, "span")) {
    const transform = arrays.get("span.action.transform");
    need(transform, "actions are missing");
    rows = identity(transform.shape[0]!);
  }
  need(rows && rows.shape.length === 2, "actions are missing");
  const [count, dimension] = rows.shape as [number, number];
  const names = has(header, "action_names") ? (header["action_names"] as string[] | null) : null;
  if (names) {
    need(names.every((name) => typeof name === "string"), "names of actions");
    need(names.length === count && new Set(names).size === count, "names of actions");
  }
  return { count, dimension, rows: rows.data, names };
}

/** All matrices fit each other, and a device can play: tried at the context of zeros. */
function tryAtZero(bundle: Bundle): void {
  const origin = new Float64Array(bundle.contextDimension);
  const law = bundle.conduct.probabilities(origin);
  const sum = law.reduce((total, each) => total + each, 0);
  need(law.every((each) => each >= 0) && Math.abs(sum - 1) < 1e-6, "nothing can be played with it");
  features(bundle.actions, origin, 0);
  const [row] = bundle.basis.rows(origin, [0]) as [Float64Array];
  need(times(row, bundle.whitening).every(Number.isFinite), "nothing can be played with it");
  need(!bundle.baseline || Number.isFinite(dot(row, bundle.baseline)), "its baseline is not a number");
}
