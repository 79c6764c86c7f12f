"use strict";
/* A small chart: lines with bands on linear or log axes, read out by pointer or arrow keys.

   A line is {key, name, full, detail, mark: {colour, dash, shape}, quiet, dots, points: [[x, y, low, high]]}.
   All text goes in as text nodes, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings become text nodes. */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** A number for a reader: three digits, no more. */
function figure(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size > 0 && size < 0.001) return Number(value.toPrecision(2)).toExponential();
  return String(Number(value.toPrecision(3)));
}

function tickLabel(value) {
  const size = Math.abs(value);
  if (size >= 1e4) return value.toLocaleString("en", { notation: "compact" });
  if (size > 0 && size < 0.001) return value.toExponential(0);
  return String(Number(value.toPrecision(6)));
}

/** Round values that cover a span, about `wanted` of them. */
function ticks(low, high, log, wanted) {
  const found = [];
  if (log) {
    const decades = Math.log10(high / low);
    const steps = decades < 1.2 ? [1, 2, 3, 5, 7] : decades < 2.5 ? [1, 2, 5] : [1];
    const skip = steps.length > 1 ? 1 : Math.max(1, Math.ceil(decades / wanted));
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += skip)
      for (const step of steps) found.push(step * 10 ** power);
  } else {
    const rough = (high - low) / wanted;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((each) => each * unit >= rough);
    for (let n = Math.ceil(low / step); n * step <= high; n++) found.push(n * step);
  }
  return found.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
}

/** A map from values to pixels. */
function scale(low, high, log, from, to) {
  const bend = log ? Math.log : (value) => value;
  const [start, end] = [bend(low), bend(high)];
  return (value) => from + ((bend(value) - start) / (end - start || 1)) * (to - from);
}

/** The span of x or y over some lines; bands count unless they would bend a log axis. */
function span(lines, axis, log) {
  const values = lines.flatMap((line) =>
    line.points.flatMap((point) => (axis === 0 ? [point[0]] : log || line.quiet ? [point[1]] : [point[1], point[3]])),
  );
  const usable = values.filter((value) => value !== null && value !== undefined && (!log || value > 0));
  if (!usable.length) return log ? [0.1, 1] : [0, 1];
  const low = usable.reduce((a, b) => Math.min(a, b)), high = usable.reduce((a, b) => Math.max(a, b));
  // On a log axis y leaves room for the markers at both ends.
  const room = axis === 1 ? (high / low) ** 0.04 : 1;
  if (log) return low < high ? [low / room, high * room] : [low / 2, high * 2];
  return axis === 1 ? [Math.min(0, low), high > 0 ? high * 1.05 : 1] : [low, high > low ? high : low + 1];
}

/** The outline of a marker around a point. */
function markPath(shape, x, y, r) {
  const at = (dx, dy) => `${(x + dx * r).toFixed(1)},${(y + dy * r).toFixed(1)}`;
  if (shape === "square") return `M${at(-0.9, -0.9)}L${at(0.9, -0.9)}L${at(0.9, 0.9)}L${at(-0.9, 0.9)}Z`;
  if (shape === "triangle") return `M${at(0, -1.15)}L${at(1.1, 0.9)}L${at(-1.1, 0.9)}Z`;
  if (shape === "down") return `M${at(0, 1.15)}L${at(1.1, -0.9)}L${at(-1.1, -0.9)}Z`;
  if (shape === "diamond") return `M${at(0, -1.3)}L${at(1.3, 0)}L${at(0, 1.3)}L${at(-1.3, 0)}Z`;
  return `M${at(-1, 0)}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
}

/** A short stretch of a line, for legends and read-outs. */
function sample(mark, dashes, quiet = mark.promise?.model === "perfect") {
  return draw("svg", { class: `sample c${mark.colour}${quiet ? " quiet" : ""}`, viewBox: "0 0 44 12", "aria-hidden": "true" },
    draw("path", { class: "line", d: "M1,6H37", "stroke-dasharray": dashes[mark.dash] }),
    draw("path", { class: "dot", d: markPath(mark.shape, 39, 6, 3.4) }));
}

/** Move sorted positions of labels apart, each as high as its size, so that none covers another. */
function spread(positions, sizes, low, high) {
  const moved = [...positions];
  const gap = (i) => (sizes[i] + sizes[i + 1]) / 2;
  for (let i = 0; i < moved.length; i++) moved[i] = Math.max(moved[i], i ? moved[i - 1] + gap(i - 1) : low + sizes[0] / 2);
  for (let i = moved.length - 1; i >= 0; i--)
    moved[i] = Math.min(moved[i], i === moved.length - 1 ? high - sizes[i] / 2 : moved[i + 1] - gap(i));
  return moved;
}

const pen = document.createElement("canvas").getContext("2d");

/** The width in pixels of a text in a chart. */
function textWidth(text) {
  pen.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
  return Math.ceil(pen.measureText(text).width);
}

/** A name in as many lines as it needs: broken after a space or a hyphen, or anywhere if need be. */
function broken(name, room) {
  const found = [""];
  for (const part of name.split(/(?<=[\s,_-])/))
    for (const piece of textWidth(part) > room ? part : [part]) {
      if (textWidth((found[found.length - 1] + piece).trimEnd()) > room) found.push("");
      found[found.length - 1] += piece;
    }
  return found;
}

/** Draw a chart into `host`, again whenever the width changes; returns a function that stops that. */
function chart(host, spec) {
  let width = 0;
  const watch = new ResizeObserver(() => {
    const now = Math.floor(host.clientWidth);
    if (now > 0 && Math.abs(now - width) > 1) {
      width = now;
      paint(host, spec, width);
    }
  });
  watch.observe(host);
  return () => watch.disconnect();
}

function paint(host, spec, width) {
  const { x, y, lines, dashes } = spec;
  const named = width >= 400 && lines.length <= 14;
  const room = named ? Math.min(Math.max(...lines.map((line) => textWidth(line.name))), Math.round(width * 0.34)) : 4;
  const names = new Map(lines.map((line) => [line.key, broken(line.name, room)]));
  const size = (line) => 13 * names.get(line.key).length;
  const tall = named ? lines.reduce((sum, line) => sum + size(line), 56) : 0;
  const height = Math.round(Math.max(Math.min(340, Math.max(230, width * 0.62)), tall));
  const plot = { left: 56, top: 10, right: width - room - 20, bottom: height - 40 };
  const toX = scale(...x.span, x.log, plot.left, plot.right);
  const toY = scale(...y.span, y.log, plot.bottom, plot.top);
  const inside = (value, axis) => value !== null && value !== undefined && (!axis.log || value > 0);
  const clampY = (value) => Math.min(plot.bottom, Math.max(plot.top, toY(value)));
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: 0,
    "aria-label": `${spec.title}. ${lines.length} lines. Left and right arrow keys read values out.` });

  // What was measured at a few values has a tick at each, and a number wherever it fits.
  let free = 0;
  for (const value of x.ticks ?? ticks(...x.span, x.log, Math.max(3, (plot.right - plot.left) / 80))) {
    const half = textWidth(tickLabel(value)) / 2 + 2;
    svg.append(draw("line", { class: "grid", x1: toX(value), x2: toX(value), y1: plot.top, y2: plot.bottom + 4 }));
    if (toX(value) - half < free) continue;
    free = toX(value) + half;
    svg.append(draw("text", { class: "tick", x: toX(value), y: plot.bottom + 16, "text-anchor": "middle" }, tickLabel(value)));
  }
  for (const value of ticks(...y.span, y.log, 5)) {
    svg.append(draw("line", { class: "grid", x1: plot.left, x2: plot.right, y1: toY(value), y2: toY(value) }),
      draw("text", { class: "tick", x: plot.left - 6, y: toY(value) + 4, "text-anchor": "end" }, tickLabel(value)));
  }
  svg.append(
    draw("text", { class: "axis", x: (plot.left + plot.right) / 2, y: height - 6, "text-anchor": "middle" }, x.label),
    draw("text", { class: "axis", x: -(plot.top + plot.bottom) / 2, y: 11, transform: "rotate(-90)", "text-anchor": "middle" }, y.label));

  // Bands below all lines, grey lines below the others, and the first of the study on top.
  const ends = [];
  const bands = draw("g", {});
  svg.append(bands);
  for (const line of [...lines.filter((each) => each.quiet), ...lines.filter((each) => !each.quiet).reverse()]) {
    const points = line.points.filter((point) => inside(point[0], x) && inside(point[1], y));
    if (!points.length) continue;
    const group = draw("g", { class: `series c${line.mark.colour}${line.quiet ? " quiet" : ""}`, "data-series": line.key, "data-name": line.full });
    const at = points.map((point) => [toX(point[0]), toY(point[1])]);
    const low = (point) => clampY(y.log ? Math.max(point[2], y.span[0] / 10) : point[2]);
    const sure = !line.quiet && points.every((point) => inside(point[2], { log: false }));
    if (sure && line.dots) {
      const bars = points.map((point) => `M${toX(point[0]).toFixed(1)},${clampY(point[3]).toFixed(1)}V${low(point).toFixed(1)}`);
      group.append(draw("path", { class: "whisker", d: bars.join("") }));
    } else if (sure && points.length > 1) {
      const there = points.map((point) => `${toX(point[0]).toFixed(1)},${clampY(point[3]).toFixed(1)}`);
      const back = points.map((point) => `${toX(point[0]).toFixed(1)},${low(point).toFixed(1)}`).reverse();
      bands.append(draw("path", { class: `band c${line.mark.colour}`, "data-series": line.key, d: `M${there.join("L")}L${back.join("L")}Z` }));
    }
    group.append(draw("path", { class: "line", "stroke-dasharray": dashes[line.mark.dash],
      d: "M" + at.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join("L") }));
    const dots = line.dots ? at : at.slice(-1);
    group.append(draw("path", { class: "dot", d: dots.map(([px, py]) => markPath(line.mark.shape, px, py, 3.4)).join("") }));
    svg.append(group);
    ends.push({ line, at: at[at.length - 1] });
  }
  if (named) {
    ends.sort((a, b) => a.at[1] - b.at[1]);
    const places = spread(ends.map((end) => end.at[1]), ends.map((end) => size(end.line)), plot.top - 4, plot.bottom + 4);
    ends.forEach(({ line, at }, i) => {
      const left = plot.right + 17, top = places[i] + 10.5 - size(line) / 2;
      svg.append(draw("path", { class: "leader", d: `M${(at[0] + 5).toFixed(1)},${at[1].toFixed(1)}L${plot.right + 14},${places[i].toFixed(1)}` }),
        draw("text", { class: `name${line.quiet ? " quiet" : ""}`, x: left, y: top },
          names.get(line.key).map((part, k) => draw("tspan", { x: left, y: top + 13 * k }, part))));
    });
  }
  const readout = make("div", { class: "readout", role: "status", hidden: "" });
  // Without room beside the lines, their names stand below.
  const key = named ? null : make("div", { class: "key" }, lines.map((line) =>
    make("span", {}, sample(line.mark, dashes, line.quiet), line.name)));
  host.replaceChildren(...[svg, readout, key].filter(Boolean));
  if (ends.length) readValues(svg, readout, { spec, plot, toX, toY, width, shown: ends.map((end) => end.line) });
}

/** The read-out: a vertical rule at one of the x values, and what every line is there. */
function readValues(svg, readout, { spec, plot, toX, toY, width, shown }) {
  const stops = [...new Set(shown.flatMap((line) => line.points.map((point) => point[0])))]
    .filter((value) => !spec.x.log || value > 0).sort((a, b) => a - b);
  const rule = draw("line", { class: "rule", y1: plot.top, y2: plot.bottom, visibility: "hidden" });
  svg.append(rule);
  let place = null;
  const show = (next, pointerY) => {
    place = Math.min(stops.length - 1, Math.max(0, next));
    const stop = stops[place], px = toX(stop);
    rule.setAttribute("x1", px);
    rule.setAttribute("x2", px);
    rule.setAttribute("visibility", "visible");
    const rows = shown
      .map((line) => ({ line, point: line.points.find((point) => point[0] === stop) }))
      .filter(({ point }) => point && point[1] !== null && point[1] !== undefined)
      .sort((a, b) => b.point[1] - a.point[1]);
    let nearest = null;
    if (pointerY !== undefined && rows.length)
      nearest = rows.reduce((a, b) => Math.abs(toY(a.point[1]) - pointerY) <= Math.abs(toY(b.point[1]) - pointerY) ? a : b).line.key;
    for (const group of svg.querySelectorAll("[data-series]"))
      group.classList.toggle("faint", nearest !== null && group.dataset.series !== nearest);
    readout.replaceChildren(
      make("strong", {}, `${spec.x.name} ${figure(stop)}`),
      ...rows.map(({ line, point }) => make("div", { class: line.key === nearest ? "row near" : "row" },
        sample(line.mark, spec.dashes, line.quiet), make("span", {}, line.name),
        make("span", { class: "value" }, figure(point[1]) + (typeof point[3] === "number" && point[3] !== point[1] ? ` ± ${figure(point[3] - point[1])}` : "")),
        line.key === nearest && line.detail ? make("small", {}, line.detail) : null)));
    readout.hidden = false;
    const left = px > (plot.left + plot.right) / 2 ? px - readout.offsetWidth - 12 : px + 12;
    readout.style.left = `${Math.max(2, Math.min(left, width - readout.offsetWidth - 2))}px`;
    // Below the axis, or above the chart where the window ends: never on the lines it explains.
    const box = svg.getBoundingClientRect();
    const below = box.bottom + readout.offsetHeight < window.innerHeight || box.top < readout.offsetHeight;
    readout.style.top = `${below ? box.height - 18 : 4 - readout.offsetHeight}px`;
  };
  const hide = () => {
    place = null;
    readout.hidden = true;
    rule.setAttribute("visibility", "hidden");
    for (const group of svg.querySelectorAll(".faint")) group.classList.remove("faint");
  };
  const follow = (event) => {
    const box = svg.getBoundingClientRect();
    const px = ((event.clientX - box.left) / box.width) * width;
    const distance = (stop) => Math.abs(toX(stop) - px);
    const nearest = stops.reduce((best, stop, i) => (distance(stop) < distance(stops[best]) ? i : best), 0);
    show(nearest, event.clientY - box.top);
  };
  svg.addEventListener("pointermove", follow);
  svg.addEventListener("pointerdown", follow);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const leap = event.shiftKey ? 10 : 1;
    const last = stops.length - 1;
    // The first key shows the last value, where most of the reading is done.
    const moves = { ArrowLeft: (place ?? last + leap) - leap, ArrowRight: (place ?? last) + leap, Home: 0, End: last };
    if (event.key === "Escape") hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}
