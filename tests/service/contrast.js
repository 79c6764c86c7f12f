/* The least contrast of any text with what is painted behind it, by the formula of WCAG. */
(() => {
  const level = (rgb) => rgb.slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, n) => sum + part * [0.2126, 0.7152, 0.0722][n], 0);
  const parts = (text) => (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const opaque = (colour) => colour.length < 4 || colour[3] > 0.99;
  let least = [99, ""], seen = 0;
  for (const element of document.querySelectorAll("body *")) {
    const said = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join("");
    if (!said || !element.getClientRects().length || element.closest("script, style, .skip")) continue;
    let behind = element;
    while (behind && !opaque(parts(getComputedStyle(behind).backgroundColor))) behind = behind.parentElement;
    const style = getComputedStyle(element), drawn = element instanceof SVGElement;
    const [a, b] = [parts(drawn ? style.fill : style.color), parts(getComputedStyle(behind || document.body).backgroundColor)].map(level);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    seen += 1;
    if (ratio < least[0]) least = [ratio, `${element.tagName} ${said.slice(0, 30)}`];
  }
  return [least[0], least[1], seen];
})()
