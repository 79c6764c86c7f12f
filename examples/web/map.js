/** Maps of the shelf: which book is on top for whom, as strongly coloured as the shelf is sure. */
import { BOOKS, liked } from "./books.js";

const SIDE = 36;
const ROWS = 3; // computed between two frames
const rgb = BOOKS.map(({ hue }) => [1, 3, 5].map((at) => parseInt(hue.slice(at, at + 2), 16)));

/** The colour of a law: of its most likely book, and see-through as long as all are as likely. */
function paint(data, place, law) {
  let best = 0;
  law.forEach((each, i) => (best = each > law[best] ? i : best));
  const sure = (law[best] - 1 / law.length) / (1 - 1 / law.length);
  data.set([...rgb[best], Math.round(255 * Math.min(1, 0.04 + 1.15 * sure))], 4 * place);
}

/** The picture of a law over all readers; null where `wanted` no longer holds. */
export async function picture(law, wanted = () => true) {
  const image = new ImageData(SIDE, SIDE);
  for (let row = 0; row < SIDE; row++) {
    for (let column = 0; column < SIDE; column++) {
      const reader = [(column + 0.5) / SIDE, 1 - (row + 0.5) / SIDE];
      paint(image.data, row * SIDE + column, law(reader));
    }
    if (row % ROWS === 0) {
      await new Promise((done) => setTimeout(done));
      if (!wanted()) return null;
    }
  }
  return image;
}

/** What the simulation knows: the book that each reader likes best. */
export function truth(reader) {
  const tastes = BOOKS.map((_, book) => liked(reader, book));
  const best = tastes.indexOf(Math.max(...tastes));
  return tastes.map((_, book) => (book === best ? tastes[best] : (1 - tastes[best]) / (tastes.length - 1)));
}

/** Draw a picture as large as its canvas, smoothly. */
export function show(canvas, image) {
  const small = new OffscreenCanvas(SIDE, SIDE);
  small.getContext("2d").putImageData(image, 0, 0);
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingEnabled = true;
  pen.imageSmoothingQuality = "high";
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
}

/** The mean over all readers: liked by chance, and at best. */
export function reach() {
  let [chance, best] = [0, 0];
  for (let i = 0; i < SIDE * SIDE; i++) {
    const reader = [((i % SIDE) + 0.5) / SIDE, (Math.floor(i / SIDE) + 0.5) / SIDE];
    const tastes = BOOKS.map((_, book) => liked(reader, book));
    chance += tastes.reduce((sum, each) => sum + each, 0) / tastes.length;
    best += Math.max(...tastes);
  }
  return { chance: chance / SIDE ** 2, best: best / SIDE ** 2 };
}
