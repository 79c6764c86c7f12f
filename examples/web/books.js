/** The shelf: what the policy file says of each book, a colour, and who would like it. */
export const BOOKS = [
  { name: "Limericks", depth: 0.08, length: 0.12, hue: "#e8b23a" },
  { name: "The Lighthouse Murders", depth: 0.18, length: 0.62, hue: "#d9603b" },
  { name: "Seven Kingdoms", depth: 0.3, length: 0.92, hue: "#a8325e" },
  { name: "Letters from Lisbon", depth: 0.42, length: 0.36, hue: "#e58fa5" },
  { name: "On Being Ill", depth: 0.62, length: 0.1, hue: "#6fb0a4" },
  { name: "The Orchard", depth: 0.66, length: 0.66, hue: "#4a8f4e" },
  { name: "A Short Proof", depth: 0.9, length: 0.32, hue: "#5b7fd0" },
  { name: "The History of Salt", depth: 0.92, length: 0.88, hue: "#473f8f" },
];

const WIDTH = 0.25;

/** How likely a simulated neighbour likes a book: known to the simulation, and to nobody else. */
export function liked([mood, time], book) {
  const { depth, length } = BOOKS[book];
  return Math.exp(-((mood - depth) ** 2 + (time - length) ** 2) / (2 * WIDTH ** 2));
}
