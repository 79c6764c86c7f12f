/** The page: what is here, what leaves, and what the neighbours teach the shelf. */
import { DurableClient, uploadTo } from "capri-device";
import { lawOf, openBundle } from "capri-device/inspect";
import { BOOKS } from "./books.js";
import { inferred } from "./inference.js";
import { picture, reach, show, truth } from "./map.js";

// What this reader is willing to spend, in all: the device's own setting, whatever a bundle asks for.
const EPSILON = Number(new URLSearchParams(location.search).get("epsilon") ?? 2);
const BATCH = 100;
const at = (id) => document.getElementById(id);
const percent = (share) => `${Math.round(100 * share)} %`;
const length = (share) => `${(100 * share).toFixed(1)}%`;
const state = { device: null, bundle: null, decision: null, reported: false, sent: null, accepted: 0, drawing: 0, epochs: [], running: false };

function make(tag, attributes = {}, ...inside) {
  const svg = ["line", "path", "circle", "text"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside);
  return element;
}

const reader = () => [Number(at("mood").value), Number(at("time").value)];

// -- the service -----------------------------------------------------------------------------------

async function fetchBundle() {
  const answer = await fetch("/v1/bundle", { credentials: "omit" });
  if (!answer.ok) throw new Error((await answer.json()).error.problem);
  return new Uint8Array(await answer.arrayBuffer());
}

async function upload(reports) {
  const answer = await fetch("/v1/reports", {
    method: "POST",
    credentials: "omit",
    headers: { "Content-Type": "application/octet-stream" },
    body: reports,
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error.problem);
  return (Array.isArray(told) ? told : [told]).map((each) => each.status);
}

// -- on this device --------------------------------------------------------------------------------

const persona = () => Number(localStorage.getItem("reading-list-persona") ?? 0);

/** Uploads, and shows what left. */
async function send(report) {
  state.sent = report;
  return uploadTo("/v1/reports")(report);
}

async function open(data) {
  if (state.device) state.device.renew(data);
  else {
    const terms = { epsilon: EPSILON, policy: "reading-list", person: String(persona()), send };
    state.device = await DurableClient.open(data, { ...terms, allowance: { epsilon: EPSILON, days: 30 } });
    // An upload that failed before the page was left: the same bytes, never a second report.
    await state.device.flush({ again: true });
    state.reported = !["none", "waiting"].includes(await state.device.status());
  }
  state.bundle = openBundle(data);
  state.data = data;
}

/** The list as the law has it; what the device has picked is on top. */
function drawList() {
  const law = state.device.probabilities(reader());
  const picked = state.decision?.actionIndex;
  const order = [...law.keys()].sort((a, b) => (b === picked) - (a === picked) || law[b] - law[a] || a - b);
  at("list").replaceChildren(
    ...order.map((book, place) => {
      const { name, hue } = BOOKS[book];
      const spine = make("span", { class: "spine" });
      spine.style.background = hue;
      const bar = make("i");
      bar.style.width = length(law[book]);
      const row = make(
        "li",
        { "data-book": book },
        spine,
        make("span", { class: "title" }, name),
        make("span", { class: "meter" }, bar),
        make("span", { class: "share" }, percent(law[book])),
      );
      if (place === 0 && picked !== undefined) row.className = "top";
      return row;
    }),
  );
  const here = at("marks").querySelector(".here");
  const [mood, time] = reader();
  here.style.left = `${100 * mood}%`;
  here.style.top = `${100 * (1 - time)}%`;
}

/** Decide, on the device: nothing leaves. */
async function decide() {
  state.decision = await state.device.act(reader());
  const { actionName, propensity } = state.decision;
  at("picked").textContent = `Your device picked ${actionName} (chance ${percent(propensity)}). ${asked()}`;
  at("picked").title = await state.device.spending();
  drawHands();
  drawList();
}

const asked = () => (state.reported ? "Its one report has left: it decides on, and is silent." : "How was it?");

function drawHands() {
  for (const id of ["like", "dislike"]) at(id).disabled = state.reported;
  at("another").hidden = !state.reported;
}

async function tell(reward) {
  for (const id of ["like", "dislike"]) at(id).disabled = true;
  const { bundle, decision } = state;
  await state.device.report(reward);
  state.reported = true;
  const status = await state.device.flush({ again: true });
  if (status === "accepted") count(1);
  drawReport(state.sent, status ?? "nothing yet; it is sent again");
  drawHands();
  at("picked").textContent = `You said what you thought of ${decision.actionName}. ${asked()}`;
  await new Promise((done) => setTimeout(done));
  drawInference(inferred(bundle, state.sent, {
    law: (context) => lawOf(bundle, context),
    title: { name: decision.actionName, number: decision.actionIndex },
  }));
}

async function another() {
  localStorage.setItem("reading-list-persona", String(persona() + 1));
  state.device = null;
  await open(state.data);
  clearReport();
  await decide();
}

// -- what left -------------------------------------------------------------------------------------

const FIELDS = [
  ["head", 0, 2, "what it is: a report, version 4"],
  ["digest", 2, 10, "which public bundle it answers"],
  ["token", 10, 26, "drawn at random: says nothing of you"],
  ["number", 26, 28, "one direction of many, mostly near yours: all that depends on you"],
  ["check", 28, 32, "checksum"],
];

function clearReport() {
  at("bytes").replaceChildren(...Array.from({ length: 32 }, () => make("span", { class: "empty" }, "··")));
  at("bytes").setAttribute("aria-label", "Nothing has left this device");
  at("fields").replaceChildren(...FIELDS.map(([kind, , , text]) => make("li", { class: kind }, text)).slice(1));
  at("answer").textContent = "Nothing so far. Say what you thought of the book.";
  at("beliefs").replaceChildren();
  at("bound").textContent = promise();
}

function promise() {
  const odds = Math.exp(EPSILON);
  const most = percent(odds / (1 + odds));
  return `Promised, whatever it knew: no odds move by more than e^ε = ${odds.toFixed(1)} (ε = ${EPSILON}), so 50 : 50 becomes ${most} at most.`;
}

function drawReport(report, status) {
  const kind = (place) => FIELDS.find(([, start, end]) => start <= place && place < end)[0];
  const text = [...report].map((byte) => byte.toString(16).padStart(2, "0"));
  at("bytes").replaceChildren(...text.map((byte, place) => make("span", { class: kind(place) }, byte)));
  at("bytes").setAttribute("aria-label", `The 32 bytes that left: ${text.join(" ")}`);
  at("answer").textContent = `These 32 bytes, and nothing else. The service said: ${status}.`;
}

function drawInference({ moved, beliefs }) {
  at("beliefs").replaceChildren(
    ...beliefs.map(({ question, before, after }) => {
      const fill = make("i");
      fill.style.width = length(after);
      const tick = make("b");
      tick.style.left = `${100 * before}%`;
      return make(
        "div",
        { class: "belief" },
        make("span", {}, question),
        make("span", { class: "said" }, `${percent(before)} before, ${percent(after)} after`),
        make("div", { class: "scale" }, fill, tick),
      );
    }),
  );
  const said = `By Bayes' rule, had it known nothing (stroke: before). This report moved odds by ${moved.toFixed(1)} at most. `;
  at("bound").textContent = said + promise();
}

// -- the shelf -------------------------------------------------------------------------------------

async function drawMap() {
  const mine = ++state.drawing;
  const { bundle } = state;
  const image = await picture((each) => lawOf(bundle, Float64Array.from(each)), () => mine === state.drawing);
  if (!image) return;
  show(at("map"), image);
  const known = at("film").querySelector(`[data-epoch="${bundle.epoch}"]`);
  if (!known) {
    const since = state.epochs.length ? `${state.accepted.toLocaleString("en")} reports` : "as it was";
    addFrame(image, `Epoch ${bundle.epoch}`, bundle.epoch === 1 ? "knows nothing" : since, { "data-epoch": bundle.epoch });
  }
}

function addFrame(image, title, note, attributes) {
  const canvas = make("canvas", { width: 120, height: 120, role: "img", "aria-label": `${title}: ${note}` });
  const frame = make("li", attributes, canvas, make("p", {}, make("b", {}, title), note));
  const last = at("film").querySelector(".truth");
  if (last) last.before(frame);
  else at("film").append(frame);
  show(canvas, image);
}

function drawMarks() {
  const marks = BOOKS.map(({ depth, length, hue }) => {
    const mark = make("span", { class: "mark" });
    mark.style.left = `${100 * depth}%`;
    mark.style.top = `${100 * (1 - length)}%`;
    mark.style.background = hue;
    return mark;
  });
  at("marks").replaceChildren(...marks, make("span", { class: "here" }));
}

/** Share of neighbours who liked their book, epoch by epoch. */
function drawChart() {
  const { chance, best } = reach();
  const [width, height, left, top] = [360, 150, 2, 10];
  const y = (share) => top + (1 - share) * (height - top - 22);
  const total = Math.max(1000, ...state.epochs.map((each) => each.end));
  const x = (reports) => left + (reports / total) * (width - 2 * left);
  const bar = (share, text) => [
    make("line", { class: "bar", x1: left, x2: width, y1: y(share), y2: y(share) }),
    make("text", { x: width, y: y(share) - 5, "text-anchor": "end" }, `${text}, ${percent(share)}`),
  ];
  const points = state.epochs.filter((each) => each.readers > 40).map((each) => [x((each.start + each.end) / 2), y(each.happy / each.readers)]);
  const path = points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
  at("chart").replaceChildren(
    ...bar(best, "if the shelf knew everything"),
    ...bar(chance, "if it showed any book"),
    make("path", { class: "line", d: path }),
    ...points.map(([a, b]) => make("circle", { class: "dot", cx: a, cy: b, r: 3.5 })),
    make("text", { x: left, y: height - 4 }, "0"),
    make("text", { x: width, y: height - 4, "text-anchor": "end" }, `${total.toLocaleString("en")} reports`),
  );
  const last = state.epochs.filter((each) => each.readers > 40).at(-1);
  if (last) at("chart").setAttribute("aria-label", `Of the last ${last.readers} neighbours ${percent(last.happy / last.readers)} liked their book`);
}

// -- neighbours ------------------------------------------------------------------------------------

function count(more) {
  state.accepted += more;
  const last = state.epochs.at(-1);
  const share = last?.readers ? `, of the latest ${percent(last.happy / last.readers)} liked theirs` : "";
  at("count").textContent = `${state.accepted.toLocaleString("en")} reports${share}.`;
}

async function invite(many) {
  state.running = true;
  at("invite").disabled = true;
  at("stop").disabled = false;
  const worker = new Worker("neighbours.js", { type: "module" });
  const ask = (asked) =>
    new Promise((done, fail) => {
      worker.onmessage = ({ data }) => done(data);
      worker.onerror = fail;
      worker.postMessage(asked);
    });
  try {
    const goal = state.accepted + many;
    while (state.running && state.accepted < goal) {
      let epoch = state.epochs.find((each) => each.number === state.bundle.epoch);
      if (!epoch) {
        epoch = { number: state.bundle.epoch, start: state.accepted, end: state.accepted, readers: 0, happy: 0 };
        state.epochs.push(epoch);
      }
      const made = await ask({ bundle: state.data, count: Math.min(BATCH, goal - state.accepted) });
      const statuses = await upload(made.reports);
      epoch.readers += statuses.length;
      epoch.happy += made.happy;
      count(statuses.filter((each) => each === "accepted").length);
      epoch.end = state.accepted;
      drawChart();
      await renew(); // 304 and no bytes while the bundle is the same
    }
  } catch (problem) {
    at("count").textContent = String(problem.message ?? problem);
  }
  worker.terminate();
  state.running = false;
  at("invite").disabled = false;
  at("stop").disabled = true;
  await renew();
}

/** A new bundle, if there is one: the device goes on with it. */
async function renew() {
  const before = state.bundle.epoch;
  await open(await fetchBundle());
  if (state.bundle.epoch === before) return;
  if (state.reported) state.decision = null; // it was drawn from an older law
  drawList();
  drawMap();
}

// -- the hands -------------------------------------------------------------------------------------

function point(event) {
  const box = at("map").getBoundingClientRect();
  const within = (share) => Math.min(1, Math.max(0, share)).toFixed(2);
  at("mood").value = within((event.clientX - box.left) / box.width);
  at("time").value = within(1 - (event.clientY - box.top) / box.height);
  drawList();
}

async function start() {
  drawMarks();
  clearReport();
  drawChart();
  await open(await fetchBundle());
  await decide();
  for (const id of ["mood", "time"]) {
    at(id).addEventListener("input", drawList);
    at(id).addEventListener("change", decide);
  }
  const frame = document.querySelector(".frame");
  frame.addEventListener("pointerdown", (event) => {
    frame.setPointerCapture(event.pointerId);
    point(event);
  });
  frame.addEventListener("pointermove", (event) => event.buttons && point(event));
  frame.addEventListener("pointerup", decide);
  at("like").addEventListener("click", () => tell(1));
  at("dislike").addEventListener("click", () => tell(0));
  at("another").addEventListener("click", another);
  at("invite").addEventListener("click", () => invite(2000));
  at("stop").addEventListener("click", () => (state.running = false));
  addFrame(await picture(truth), "Their taste", "known to the simulation alone", { class: "truth" });
  await drawMap();
}

globalThis.readingList = { state, invite };
start().catch((problem) => (at("picked").textContent = `The shelf cannot be reached: ${problem.message}`));
