"use strict";
/* The page of a service: asks it every few seconds and draws what it says. */

const PERIOD = 2500;
const state = { key: sessionStorage.getItem("capri-key"), seen: [], rates: [], releases: -1, mode: "", operator: true };
const at = (id) => document.getElementById(id);
/* A page that was kept has all figures inside, and asks nobody. */
const kept = at("kept") ? JSON.parse(at("kept").textContent) : null;

class Refused extends Error {
  constructor(status) { super(String(status)); this.status = status; }
}

async function ask(path) {
  if (kept) {
    if (path in kept) return kept[path];
    throw new Refused(404);
  }
  const headers = state.key ? { Authorization: `Bearer ${state.key}` } : {};
  const response = await fetch(path, { headers, credentials: "omit", redirect: "error", cache: "no-store" });
  if (!response.ok) throw new Refused(response.status);
  return response.json();
}

function tell(problem) {
  at("problem").textContent = problem || "";
  at("problem").hidden = !problem;
}

function show(open) {
  at("door").hidden = open;
  at("main").hidden = !open;
}

// -- now ----------------------------------------------------------------------------------------

function tile(label, value, unit, more, extra) {
  return make("div", { class: "tile" }, make("div", { class: "label" }, label),
    make("div", { class: "figure" }, value, unit ? make("small", {}, ` ${unit}`) : null), extra || null,
    make("div", { class: "more" }, more || ""));
}

function lasting(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

/** A time of today, or a day with its time. */
function moment(seconds) {
  const then = new Date(1000 * seconds), time = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const soon = then - new Date() < 6 * 86400e3, day = then.toLocaleDateString([], soon ? { weekday: "short" } : { day: "numeric", month: "short" });
  return then.toDateString() === new Date().toDateString() ? time : `${day} ${time}`;
}

/** Decisions a minute, from how many there were over the last minute of looks. */
function pace(decided) {
  const now = performance.now() / 1000;
  state.seen.push([now, decided]);
  while (state.seen.length > 2 && now - state.seen[0][0] > 60) state.seen.shift();
  const [since, before] = state.seen[0];
  const rate = now > since ? (60 * (decided - before)) / (now - since) : 0;
  const last = state.seen.at(-2);
  if (last) state.rates.push((60 * (decided - last[1])) / (now - last[0]));
  if (state.rates.length > 60) state.rates.shift();
  return rate;
}

/** From when to when epochs were due, as far as their times are known. */
function dated(epochs) {
  const days = epochs.map((epoch) => epoch.date).filter((each) => each).map((each) => new Date(1000 * each).toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" }));
  if (!days.length) return "";
  return days[0] === days.at(-1) ? `On ${days[0]}.` : `From ${days[0]} to ${days.at(-1)}.`;
}

function closing(epoch, rate, rewards) {
  if (!epoch) return "The next epoch is being planned.";
  const left = epoch.length - epoch.taken;
  if (left <= 0) return "Full: goes on until the next is planned.";
  const soon = rate > 0 ? `, about ${lasting((60 * left) / rate)} at this pace` : "";
  const clock = epoch.ends_at ? `, at ${moment(epoch.ends_at)} at the latest` : rewards.epoch_seconds ? ", or by the clock" : "";
  return `Closes in ${left.toLocaleString("en")} decisions${soon}${clock}.`;
}

function drawNow(policy, epochs, ledger) {
  const progress = policy.progress, rate = pace(progress.decided);
  const taking = progress.under_way.find((epoch) => epoch.open);
  const waiting = progress.under_way.filter((epoch) => !epoch.open).length;
  const budget = ledger.budget.epsilon;
  const rates = epochs.map((epoch) => epoch.response_rate).filter((each) => each !== null && each !== undefined);
  const response = rates.length ? rates.at(-1) : null;
  at("tiles").replaceChildren(
    kept ? tile("Releases", String(progress.released), "", dated(epochs)) : tile("Decisions a minute", figure(rate), "", "Over the last minute.", spark(state.rates)),
    tile("Decisions in all", progress.decided.toLocaleString("en"), "", policy.mode === "frozen" ? "Frozen: it decides by what was learnt, and learns nothing." : policy.horizon ? `Of ${policy.horizon.toLocaleString("en")}.` : `${progress.released} ${progress.released === 1 ? "release" : "releases"} so far. ${dated(epochs)}`),
    tile("Epoch under way", taking ? `${taking.epoch}` : "–", taking ? `${Math.min(100, Math.round((100 * taking.taken) / taking.length))} % taken` : "", closing(taking, rate, policy.rewards), taking ? share(taking.taken / taking.length) : null),
    tile("Response rate", response === null ? "–" : percent(response), "", response === null ? (policy.rewards.missing === null ? "Released with each epoch." : "A missing reward counts as a number.") : `As released with ${rates.length === 1 ? "one epoch" : `${rates.length} epochs; the last is shown`}.`, rates.length > 1 ? spark(rates) : waiting ? make("div", { class: "label" }, `${waiting} ${waiting === 1 ? "epoch waits" : "epochs wait"} for rewards`) : null),
    tile("Promised to each user", `ε = ${figure(budget)}`, `δ = ${figure(ledger.budget.delta)}`, ledger.releases.length ? `Kept by ${ledger.releases.length === 1 ? "the release" : `all ${ledger.releases.length} releases`}: no user loses more. Each has a budget of their own, so nothing runs out.` : "Nothing is released yet. Each user has a budget of their own."),
  );
  at("pills").replaceChildren(
    kept ? make("li", {}, `${policy.progress.decided.toLocaleString("en")} decisions`) : make("li", { class: "live" }, "live"),
    make("li", {}, `mode: ${policy.mode}`),
    make("li", {}, `${policy.model} model`),
    make("li", {}, `${policy.actions.length} actions`),
  );
}

// -- what the releases tell ---------------------------------------------------------------------

/** The limits that every decision keeps to, in a line. */
function limited(limits) {
  if (!limits) return "";
  const parts = ["floor", "ceiling", "share"].flatMap((kind) => limits[kind].map(([name, value]) => `${kind} of ${name} ${percent(value)}`));
  parts.push(...limits.allowed.map(([name, columns]) => `${name} only by ${columns.map(([column]) => column).join(" and ")}`));
  return make("p", { class: "soft" }, `Every decision keeps to: ${parts.join(", ") || "what is available"}.`);
}

function drawActions(estimate, policy) {
  const rows = [...estimate.actions].sort((a, b) => b.estimate - a.estimate || b.played - a.played);
  const reach = (row) => [row.estimate - (row.error || 0), row.estimate + (row.error || 0)];
  const ends = rows.flatMap(reach).concat([0, estimate.releases ? 0 : policy.reward_bound]);
  const low = Math.min(...ends), high = Math.max(...ends);
  at("actions-note").textContent = estimate.releases
    ? `Estimated mean reward over the public contexts, with the predicted error of pairs in play to either side; after ${estimate.releases} ${estimate.releases === 1 ? "release" : "releases"}.`
    : "Nothing is released yet: every action is expected to be alike.";
  at("actions").replaceChildren(make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Action"), make("th", { scope: "col", colspan: 2 }, "Estimate, ± error"), make("th", { class: "share", scope: "col" }, "Played"), make("th", { class: "number", scope: "col" }, make("span", { class: "narrow" }, "Played")))),
    make("tbody", {}, rows.slice(0, 12).map((row, n) => make("tr", { class: n === 0 && estimate.releases ? "best" : null },
      make("td", { class: "name" }, row.name),
      make("td", { class: "draw" }, whisker(row.estimate, row.error, low, high, `${figure(row.estimate)} plus or minus ${figure(row.error)}`)),
      make("td", { class: "number" }, row.estimate.toFixed(3), row.error ? make("span", { class: "error" }, ` ± ${row.error.toFixed(3)}`) : ""),
      make("td", { class: "share" }, share(row.played)),
      make("td", { class: "number" }, percent(row.played)))))),
  limited(policy.limits),
  rows.length > 12 ? make("p", { class: "soft" }, `and ${rows.length - 12} more actions`) : "");
}

/** How much more the law of now earns than others, and by how much that may be wrong. */
function drawWorth(told, estimate) {
  if (!told || !told.lifts.length) {
    at("worth-note").textContent = "This preset keeps no belief that could say so.";
    return at("worth").replaceChildren();
  }
  at("worth-note").textContent = estimate.releases
    ? `A visit earns ${figure(told.worth)} by the law of now, as estimated from the releases over the public contexts. More than others, with an interval of 95 %:`
    : "Nothing is released yet: all ways to play are expected to be alike.";
  const ends = told.lifts.flatMap((each) => [each.low, each.high, 0]), low = Math.min(...ends), high = Math.max(...ends);
  at("worth").replaceChildren(make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Beside"), make("th", { scope: "col" }, ""), make("th", { class: "number", scope: "col" }, "Lift"))),
    make("tbody", {}, told.lifts.map((each) => make("tr", {},
      make("td", { class: "name" }, each.against === `always ${told.control}` ? `${each.against} (as before)` : each.against),
      make("td", { class: "draw" }, whisker(each.lift, (each.high - each.low) / 2, low, high, `${figure(each.lift)}, between ${figure(each.low)} and ${figure(each.high)}`)),
      make("td", { class: "number lift" }, each.lift.toFixed(3).replace(/^-(0\.0*)$/, "$1"), make("span", { class: "soft" }, ` ± ${((each.high - each.low) / 2).toFixed(3)}`)))))));
  if (!told.control) at("worth").append(make("p", { class: "soft" }, "Name the action that was played before, as control under [service], and give it a floor under [limits], to see the lift over it."));
}

/** A small public map: what is played most by two columns. */
function drawMap(map, estimate) {
  at("map-card").hidden = !map || !estimate.releases;
  if (at("map-card").hidden) return;
  at("map-note").textContent = `What is played most, by ${map.across.name}${map.down.name ? ` and ${map.down.name}` : ""}, over the public contexts, and in what share of visits.`;
  at("map").replaceChildren(make("table", { class: "map" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, map.down.name ? `${map.down.name} \\ ${map.across.name}` : map.across.name), map.across.values.map((value) => make("th", { scope: "col" }, value)))),
    make("tbody", {}, map.cells.map((row, n) => make("tr", {}, make("th", { scope: "row" }, map.down.values[n]), row.map((cell) => make("td", {}, cell ? make("b", {}, cell.action) : "–", cell ? make("span", { class: "soft" }, ` ${percent(cell.share)}`) : "")))))));
}

function drawEpochs(epochs, estimate, policy, forecast) {
  const points = (name, by = () => 1) => epochs.filter((epoch) => epoch[name] !== null && epoch[name] !== undefined).map((epoch) => [epoch.epoch, epoch[name] / by(epoch)]);
  const relative = (line) => line.map(([epoch, value]) => [epoch, value / (line[0][1] || 1)]);
  const error = epochs.some((epoch) => epoch.predicted_error) ? "predicted_error" : "width";
  const last = epochs.length ? epochs.at(-1).epoch : 0;
  const expected = (forecast || []).filter((epoch) => epoch.epoch <= Math.max(last, 4) && epoch[error]).map((epoch) => [epoch.epoch, epoch[error]]);
  at("forecast-note").textContent = expected.length ? "Error of the estimate: as forecast before the first user, and as the releases have it." : "Error of the estimate, as the releases have it.";
  lineChart(at("forecast"), [{ name: "what happened", colour: 0, points: points(error) }, { name: "forecast", colour: 1, dashed: true, points: expected }], "Error of the estimate by epoch");
  at("noise-note").textContent = "Typical width, and noise at the gate per decision; the first epoch is 1.";
  lineChart(at("noise"), [{ name: "width", colour: 0, points: relative(points("width")) }, { name: "noise", colour: 1, points: relative(points("noise_scale", (epoch) => epoch.length)) }], "Width and noise by epoch");
  at("play-note").textContent = `Played now as if there were ${figure(estimate.effective_actions)} of ${policy.actions.length} actions. Share of pairs in play:`;
  lineChart(at("play"), [{ name: "in play", colour: 2, points: points("active_share") }], "Share of pairs in play by epoch");
}

/** What the policy would be worth while another system decides, as released; noise is public, so is its width. */
function drawShadow(records, policy) {
  at("shadow-card").hidden = !records.length && policy.mode !== "shadow";
  if (!records.length) {
    at("shadow-note").textContent = "Another system decides. What the policy would be worth is released with each epoch.";
    return at("shadow").replaceChildren(make("div", { class: "empty" }, "After the first release."));
  }
  const visits = records.reduce((sum, each) => sum + each.visits, 0);
  const pooled = (name) => records.reduce((sum, each) => sum + each.visits * each[name], 0) / visits;
  const width = (name) => 2 * Math.sqrt(records.reduce((sum, each) => sum + (each.visits * each[name]) ** 2, 0)) / visits;
  const worth = pooled("worth"), earned = pooled("earned"), weight = pooled("weight");
  const said = (value, wide) => `${figure(value)} ± ${figure(wide)}`;
  at("shadow-note").textContent = `A visit would earn ${said(worth, width("worth_noise"))} by the policy and earned ${said(earned, width("earned_noise"))} by the other system: ${visits.toLocaleString("en")} visits of ${records.length} ${records.length === 1 ? "epoch" : "epochs"}, with two deviations of the noise.`;
  lineChart(at("shadow"), [
    { name: "the policy would earn", colour: 0, points: records.map((each) => [each.epoch, each.worth, 2 * each.worth_noise]) },
    { name: "the other system earned", colour: 1, points: records.map((each) => [each.epoch, each.earned, 2 * each.earned_noise]) },
  ], "What a visit would earn by the policy, and earned by the other system, by epoch");
  const off = Math.abs(weight - 1) > width("weight_noise") + 0.1;
  at("shadow").append(make("p", { class: off ? "alarm" : "soft" }, `Weights average ${said(weight, width("weight_noise"))} where 1 is expected, clipped at ${records[0].weight_bound}`, off ? ": propensities that were sent are wrong, or much is clipped, and the estimate is off." : "."));
}

function drawEvidence(told) {
  if (!told) return at("evidence").replaceChildren(make("div", { class: "empty" }, "This preset believes in one kernel."));
  const columns = told.columns.filter((column) => column.effect > 2 * column.standard_error).sort((a, b) => b.effect - a.effect).slice(0, 4);
  at("evidence").replaceChildren(
    make("p", { class: "soft" }, told.headline),
    make("table", {},
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Effect of"), make("th", { scope: "col" }, "By evidence"), make("th", { class: "number", scope: "col" }, ""))),
      make("tbody", {}, told.effects.map((effect) => make("tr", {}, make("td", { class: "name" }, effect.name), make("td", { class: "draw" }, share(effect.share)), make("td", { class: "number" }, percent(effect.share)))))),
    told.releases ? make("p", { class: "soft" }, columns.length ? `Columns that matter: ${columns.map((column) => `${column.name} ${figure(column.effect)} ± ${figure(column.standard_error)}`).join(", ")}.` : "") : "",
    ...drawCrowd(told.who_comes));
}

function drawCrowd(crowd) {
  if (!crowd || !crowd.columns.length) return [];
  const rows = crowd.users ? crowd.columns.slice(0, 12) : [];
  const about = (column) => column.levels.length ? column.levels.slice(0, 3).map(([name, part]) => `${name} ${percent(part)}`).join(", ") : `${figure(column.low)} · ${figure(column.middle)} · ${figure(column.high)}`;
  return [
    make("p", { class: "soft" }, `${crowd.headline} Numbers: where 10, 50 and 90 % lie.`),
    rows.length ? make("table", {},
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Who comes"), make("th", { scope: "col" }, "By release"), make("th", { class: "number", scope: "col" }, "± share"))),
      make("tbody", {}, rows.map((column) => make("tr", {}, make("td", { class: "name" }, column.name), make("td", {}, about(column)), make("td", { class: "number" }, percent(column.error)))))) : "",
    crowd.together.length ? make("p", { class: "soft" }, `Go together: ${crowd.together.slice(0, 5).map((pair) => `${pair.one} and ${pair.other} ${figure(pair.correlation)}`).join(", ")} (± ${figure(crowd.correlation_error)}).`) : ""];
}

function drawBudget(ledger, certificate) {
  const last = ledger.releases.at(-1);
  const facts = [["Promised to each user", `ε = ${figure(ledger.budget.epsilon)}, δ = ${figure(ledger.budget.delta)}`], ["Kept so far", ledger.releases.length ? `yes: ε = ${figure(ledger.spent.epsilon)} at most for each user` : "nothing is released"], ["Releases in the ledger", String(ledger.releases.length)], ["Last release", last ? `${last.participants.toLocaleString("en")} decisions` : "–"], ["Its noise, in contributions", last && last.sensitivity ? figure(last.noise_scale / last.sensitivity) : "–"]];
  const store = certificate && certificate.digests && certificate.digests.store;
  if (store) facts.push(["Rollback guard outside of the store", store.guarded ? "yes" : "none"]);
  const digest = certificate && certificate.digests && certificate.digests.configuration;
  if (digest) facts.push(["Configuration", `${String(digest).slice(0, 16)}…`]);
  at("budget").replaceChildren(
    make("ul", { class: "facts" }, facts.map(([name, value]) => make("li", {}, make("span", {}, name), make("b", {}, value)))),
    certificate ? make("p", { class: "buttons" }, make("button", { type: "button", click: () => keep("certificate.json", JSON.stringify(certificate, null, 2)) }, "Certificate as JSON"), kept ? null : make("button", { type: "button", click: printed }, "Certificate to print")) : "");
}

async function printed() {
  const response = await fetch("/v1/certificate.html", { headers: state.key ? { Authorization: `Bearer ${state.key}` } : {}, credentials: "omit", cache: "no-store" });
  if (response.ok) keep("certificate.html", await response.text());
  else tell("The certificate cannot be had now.");
}

function keep(name, text) {
  const link = make("a", { download: name });
  link.href = URL.createObjectURL(new Blob([text], { type: name.endsWith("json") ? "application/json" : "text/html" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function drawAlarms(policy, operations) {
  const done = (operations || []).slice(-4).reverse().map((each) => make("tr", {}, make("td", { class: "name" }, each.kind), make("td", {}, Object.entries(each).filter(([name]) => name !== "kind" && name !== "made").map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ")), make("td", { class: "number" }, new Date(1000 * each.made).toLocaleString())));
  at("history").replaceChildren(done.length ? make("table", {}, make("tbody", {}, done)) : make("p", { class: "soft" }, "Settings and mode are as they were declared."));
  at("alarms").replaceChildren(...(policy.notices.length
    ? policy.notices.map((notice) => make("p", { class: "alarm" }, make("b", {}, notice.kind), ` ${notice.text}`))
    : [make("p", { class: "fine" }, "✓ What was released fits"), make("p", { class: "soft" }, "Looked for with every release: misfit of the kernel, rank too small, features without scale, a wait for rewards that is too short, rewards that do not come, contexts unlike the public rows, drift.")]));
}

// -- inside the trust boundary ------------------------------------------------------------------

function counts(title, values) {
  const rows = Object.entries(values);
  return make("div", {}, make("h3", {}, title), rows.length ? make("table", {}, make("tbody", {}, rows.map(([name, value]) => make("tr", {}, make("td", { class: "name" }, name), make("td", { class: "number" }, typeof value === "number" ? value.toLocaleString("en") : value))))) : make("p", { class: "soft" }, "none yet"));
}

/** Alarms of private counts: who acts on them leaves the theorem, and is told so. */
function warned(live) {
  const told = live.alarms.map((alarm) => make("p", { class: "alarm" }, make("b", {}, alarm.kind), ` ${alarm.text}`));
  return told.length ? [...told, make("p", { class: "soft" }, live.alarms_mean)] : [];
}

async function drawLive() {
  if (!state.operator) return;
  try {
    const live = await ask("/v1/live");
    const times = Object.fromEntries(Object.entries(live.milliseconds).map(([name, each]) => [name, `${figure(each.p50)} / ${figure(each.p99)} ms`]));
    at("live").replaceChildren(...warned(live), make("div", { class: "columns" }, counts("Visits by status", live.visits), counts("Rewards by status", live.rewards), counts("Requests, median / 99 %", times)));
    at("live").append(make("p", { class: "soft" }, `Of the worker that answered, since ${moment(live.since)}.`));
    at("inside").hidden = false;
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    state.operator = false;
    at("inside").hidden = true;
  }
}

// -- looking again and again --------------------------------------------------------------------

async function optional(path) {
  try { return await ask(path); } catch (problem) {
    if (problem instanceof Refused) return null;
    throw problem;
  }
}

async function look() {
  const policy = await ask("/v1/policy");
  const stamp = `${policy.progress.released} ${policy.mode} ${policy.actions.join()}`;
  if (stamp !== state.stamp) {
    const [epochs, estimate, ledger, told, certificate, forecast, operations, shadow, worth] = await Promise.all([ask("/v1/epochs"), ask("/v1/estimate"), ask("/v1/ledger"), optional("/v1/explanation"), optional("/v1/certificate"), optional("/v1/forecast"), optional("/v1/operations"), optional("/v1/shadow"), optional("/v1/worth")]);
    Object.assign(state, { stamp, epochs, estimate, ledger, told, certificate, operations, worth, shadow: shadow || [], forecast: forecast && forecast.epochs, policy });
    at("name").textContent = policy.name;
    document.title = `${policy.name} · capri`;
    at("guarantee").textContent = policy.guarantee;
    show(true);
    drawHeavy();
  }
  show(true);
  drawNow(policy, state.epochs, state.ledger);
  drawAlarms(policy, state.operations);
  await drawLive();
  if (!kept) at("stamp").textContent = `As of ${new Date().toLocaleTimeString()}, capri ${policy.version}.`;
}

function drawHeavy() {
  drawActions(state.estimate, state.policy);
  drawEpochs(state.epochs, state.estimate, state.policy, state.forecast);
  drawWorth(state.worth, state.estimate);
  drawMap(state.worth && state.worth.map, state.estimate);
  drawEvidence(state.told);
  drawShadow(state.shadow, state.policy);
  drawBudget(state.ledger, state.certificate);
}

async function go() {
  try {
    await look();
    tell("");
  } catch (problem) {
    if (problem instanceof Refused && (problem.status === 401 || problem.status === 403)) {
      show(false);
      tell(state.key ? "This key is not known here, or has not the role read." : "");
    } else {
      tell("The service does not answer. Looking again.");
      at("pills").replaceChildren(make("li", { class: "away" }, "away"));
    }
  }
  if (!kept) setTimeout(go, document.hidden ? 4 * PERIOD : PERIOD);
}

at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = at("key").value.trim() || null;
  at("key").value = "";
  if (state.key) sessionStorage.setItem("capri-key", state.key);
  state.operator = true;
  state.stamp = "";
  look().then(() => tell(""), () => tell("This key is not known here, or has not the role read."));
});
at("unlock").addEventListener("click", () => {
  sessionStorage.removeItem("capri-key");
  state.key = null;
  show(false);
  at("key").focus();
});
if (kept) {
  document.querySelector("nav").hidden = true;
  state.operator = false;
  at("stamp").textContent = `Kept on ${new Date(1000 * kept.made).toLocaleString()}.`;
}
let width = innerWidth;
addEventListener("resize", () => { if (state.epochs && innerWidth !== width) { width = innerWidth; drawHeavy(); } });
go();
