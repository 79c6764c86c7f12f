"use strict";
/* Small charts of lines and whiskers, on the elements and ticks of chart.js.
   All text goes in as text nodes, never as markup. */

function percent(value) {
  return value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`;
}

/** Lines over epochs, read out by pointer or arrow keys.

    A line is {name, colour, dashed, points: [[x, y, width]]}; a width is drawn to either side, where there is one. */
function lineChart(place, lines, label) {
  const shown = lines.filter((line) => line.points.length);
  if (!shown.length) return place.replaceChildren(make("div", { class: "empty" }, "After the first release."));
  const width = Math.max(260, place.clientWidth || 380), height = 190;
  const left = 44, right = 10, top = 10, bottom = 24;
  const xs = [...new Set(shown.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
  const ends = shown.flatMap((line) => line.points.flatMap(([, value, wide]) => [value - (wide || 0), value + (wide || 0)]));
  const low = 1.08 * Math.min(0, ...ends), high = Math.max(...ends, 0) * 1.08 || (low < 0 ? 0 : 1);
  const x = (value) => left + (xs.length < 2 ? 0.5 : (value - xs[0]) / (xs.at(-1) - xs[0])) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", tabindex: "0", "aria-label": `${label}. ${shown.map((line) => `${line.name}: last ${figure(line.points.at(-1)[1])}`).join("; ")}. Arrow keys read it out.` });
  for (const tick of ticks(low, high, false, 4)) svg.append(
    draw("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: tick ? "rule" : "axis" }),
    draw("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, figure(tick)),
  );
  for (const tick of (xs.length < 2 ? xs : ticks(xs[0], xs.at(-1), false, 6)).filter(Number.isInteger)) svg.append(
    draw("text", { x: x(tick), y: height - 7, "text-anchor": "middle" }, String(tick)),
  );
  const first = shown[0];
  const path = (line) => line.points.map((point, n) => `${n ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("");
  if (shown.filter((line) => !line.dashed).length === 1 && first.points.length > 1)
    svg.append(draw("path", { class: `area f${first.colour}`, d: `${path(first)}L${x(first.points.at(-1)[0])} ${y(0)}L${x(first.points[0][0])} ${y(0)}Z` }));
  for (const line of [...shown].reverse()) {
    const wide = line.points.filter((point) => point[2]);
    const edge = (side) => (point) => `${x(point[0]).toFixed(1)} ${y(point[1] + side * point[2]).toFixed(1)}`;
    if (wide.length > 1) svg.append(draw("path", { class: `band f${line.colour}`, d: `M${wide.map(edge(1)).join("L")}L${[...wide].reverse().map(edge(-1)).join("L")}Z` }));
    if (wide.length < 12) for (const point of wide) svg.append(draw("path", { class: `line thin c${line.colour}`, d: `M${edge(1)(point)}L${edge(-1)(point)}` }));
    svg.append(draw("path", { class: `line c${line.colour}${line.dashed ? " dashed" : ""}`, d: path(line) }));
    if (line.points.length < 40 && !line.dashed) for (const [a, b] of line.points) svg.append(draw("circle", { cx: x(a), cy: y(b), r: 2.6, class: `f${line.colour}` }));
  }
  const cross = draw("line", { y1: top, y2: height - bottom, class: "cross", visibility: "hidden" });
  svg.append(cross);
  const readout = make("p", { class: "readout", "aria-live": "polite" });
  let at = -1;
  const show = (n) => {
    at = Math.max(0, Math.min(xs.length - 1, n));
    cross.setAttribute("x1", x(xs[at])); cross.setAttribute("x2", x(xs[at])); cross.setAttribute("visibility", "visible");
    const told = shown.map((line) => [line.name, line.points.find((point) => point[0] === xs[at])]).filter(([, point]) => point);
    readout.textContent = `Epoch ${xs[at]}: ${told.map(([name, point]) => `${name} ${figure(point[1])}${point[2] ? ` ± ${figure(point[2])}` : ""}`).join(", ")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), wanted = ((event.clientX - box.left) / box.width) * width;
    show(xs.reduce((best, value, n) => (Math.abs(x(value) - wanted) < Math.abs(x(xs[best]) - wanted) ? n : best), 0));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); show(at < 0 ? xs.length - 1 : at + step); }
  });
  const key = shown.length > 1 ? make("ul", { class: "key" }, shown.map((line) => make("li", {}, make("i", { class: `k${line.colour}${line.dashed ? " dash" : ""}` }), line.name))) : null;
  place.replaceChildren(...[key, svg, readout].filter(Boolean));
}

/** A point and what is unknown of it, on a common scale from `low` to `high`. */
function whisker(value, error, low, high, label) {
  const width = 240, at = (number) => 4 + ((Math.max(low, Math.min(high, number)) - low) / (high - low || 1)) * (width - 8);
  return draw("svg", { viewBox: `0 0 ${width} 20`, height: 20, preserveAspectRatio: "none", role: "img", "aria-label": label },
    draw("line", { x1: at(0), x2: at(0), y1: 0, y2: 20, class: "axis" }),
    error ? draw("line", { x1: at(value - error), x2: at(value + error), y1: 10, y2: 10, class: "line c0", opacity: 0.35, "stroke-width": 7 }) : null,
    draw("rect", { x: at(value) - 1.6, y: 3.5, width: 3.2, height: 13, rx: 1.5, class: "f0" }));
}

/** A share of 1 as a bar; widths are set by property, which the content policy allows. */
function share(value) {
  const inner = make("span");
  inner.style.width = `${100 * Math.max(0, Math.min(1, value || 0))}%`;
  return make("div", { class: "bar" }, inner);
}

/** The course of the last numbers, without axes. */
function spark(values) {
  const width = 160, height = 26, high = Math.max(...values, 1e-9);
  const points = values.map((value, n) => [(n / Math.max(1, values.length - 1)) * width, height - 2 - (value / high) * (height - 4)]);
  const line = points.map(([a, b], n) => `${n ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", height, preserveAspectRatio: "none", "aria-hidden": "true" },
    values.length > 1 ? draw("path", { class: "area f0", d: `${line}L${width} ${height}L0 ${height}Z` }) : null,
    values.length > 1 ? draw("path", { class: "line c0", d: line }) : null);
}
