/** What whoever reads a report can infer from it, by Bayes' rule and the randomizer's own law. */
import { Directions, encode, nearest } from "capri-device/inspect";

/** How likely a device with this datum reports this number, given its token: docs/reference/wire.md. */
export function likelihood(bundle, directions, number, context, action, reward) {
  const { sphere, normLimit } = bundle;
  const vector = encode(bundle, context, action, reward);
  const norm = Math.hypot(...vector);
  if (!norm) vector[0] = 1;
  const forward = (1 + norm / normLimit) / 2;
  const heads = Number(sphere.chance) / 2 ** 63;
  const near = heads / sphere.near;
  const far = (1 - heads) / (sphere.candidates - sphere.near);
  const close = nearest(sphere, directions, vector); // those of the opposite are the opposite ones
  const law = (it) => (close.includes(it) ? near : far);
  return forward * law(number) + (1 - forward) * law(number ^ 1);
}

const SIDE = 6;

/**
 * Beliefs of somebody who has the bundle and the report and knows nothing else: every reader is as
 * likely, and so are both answers. `before` and `after` of each question, and the largest factor by
 * which the odds of any two stories have moved.
 */
export function inferred(bundle, report, { law, title }) {
  const number = report[26] | (report[27] << 8);
  const directions = new Directions(report.slice(10, 26), bundle.sphere.dimension);
  const stories = [];
  for (let i = 0; i < SIDE; i++) {
    for (let j = 0; j < SIDE; j++) {
      const context = Float64Array.of((i + 0.5) / SIDE, (j + 0.5) / SIDE);
      law(context).forEach((share, book) => {
        if (share < 1e-3) return;
        for (const reward of [0, 1]) {
          const seen = likelihood(bundle, directions, number, context, book, reward);
          stories.push({ context, book, reward, prior: share / 2, seen });
        }
      });
    }
  }
  const total = (weight, holds) => stories.reduce((sum, each) => sum + (holds(each) ? weight(each) : 0), 0);
  const prior = (each) => each.prior;
  const joint = (each) => each.prior * each.seen;
  const everything = [total(prior, () => true), total(joint, () => true)];
  const asked = (question, holds) => ({
    question,
    before: total(prior, holds) / everything[0],
    after: total(joint, holds) / everything[1],
  });
  const seen = stories.map((each) => each.seen);
  return {
    moved: Math.max(...seen) / Math.min(...seen),
    beliefs: [
      asked("You liked it", (each) => each.reward === 1),
      asked(`It was ${title.name}`, (each) => each.book === title.number),
      asked("Your mood is deep", (each) => each.context[0] > 0.5),
      asked("You have much time", (each) => each.context[1] > 0.5),
    ],
  };
}
