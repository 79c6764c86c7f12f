/* The page: choices on the left, and sections that are drawn again when a choice changes. */

const MODELS = {
  joint: "Joint privacy: a curator is trusted with the data",
  local: "Local privacy: nobody is trusted",
  shuffle: "Shuffle privacy: a shuffler is trusted",
  central: "Central privacy: the answer at the end is private",
  none: "No privacy",
  perfect: "Uses no data",
};
const TABLE_ALARM = "computed from the rows of a table without privacy: do not publish if they are private";
const SECTIONS = [regretSection, epsilonSection, horizonSection, finalSection, epochSection, noticeSection, mapSection,
  costSection, promiseSection, failureSection, studySection];

const studies = JSON.parse(document.getElementById("data").textContent);
const sorted = (values) => [...new Set(values)].sort((a, b) => a - b);
const unique = (values) => [...new Set(values)];
const percent = (share) => `${Math.round(100 * share)} %`;

/** Show one study; `state` is what the reader chose. */
function showStudy(number) {
  const study = studies[number];
  const epsilons = sorted(study.series.map((one) => one.epsilon).filter((value) => value !== null));
  const environments = unique(study.series.map((one) => one.environment));
  const state = {
    environment: environments[0],
    rounds: Math.max(0, ...study.series.filter((one) => one.environment === environments[0]).map((one) => one.rounds)),
    epsilon: epsilons.includes(1) ? 1 : (epsilons[epsilons.length >> 1] ?? null),
    hidden: new Set(),
    overlay: false,
    log: false,
    against: {},
  };
  const view = { study, state, epsilons, environments, stops: [], number };
  view.refresh = () => {
    view.stops.splice(0).forEach((stop) => stop());
    main.replaceChildren(...SECTIONS.map((section) => section(view)).filter(Boolean));
  };
  const main = make("main", { id: "main", tabindex: -1 });
  document.getElementById("page").replaceChildren(heading(view),
    study.series.length ? make("div", { class: "layout" }, controls(view), main) : main, foot(view));
  view.refresh();
}

function heading({ study }) {
  const failed = study.failures.reduce((sum, one) => sum + one.cells, 0);
  const seeds = unique(study.series.flatMap((one) => one.seeds)).length;
  const fact = (value, words, loud) => make("li", { class: loud ? "alarm" : null }, make("b", {}, value), ` ${words}`);
  return make("header", {},
    make("h1", {}, study.title || study.name),
    study.description ? make("p", { class: "soft" }, study.description) : null,
    study.tables.length ? make("p", { class: "alarm", id: "tables" }, make("b", {}, study.tables.join(", ")), `: ${TABLE_ALARM}.`) : null,
    make("ul", { class: "facts" },
      fact("seeded simulations", "nobody was protected"),
      fact(figure(study.cells - failed), "cells done"),
      failed ? fact(figure(failed), "failed: see below", true) : null,
      study.missing ? fact(figure(study.missing), "not run yet", true) : null,
      fact(figure(seeds), seeds === 1 ? "seed: no band and no test can be given" : "seeds"),
      study.seconds < 120 ? fact(figure(study.seconds), "seconds of computing") : fact(figure(study.seconds / 60), "minutes of computing"),
      fact(study.versions.join(", "), study.versions.length > 1 ? "capri versions: mixed" : "capri version", study.versions.length > 1)),
    study.series.length ? null : make("p", { class: "alarm" }, "No cell of this study has a result yet."));
}

/** Everything the reader can choose. Real selects and buttons: the keyboard works. */
function controls(view) {
  const { study, state } = view;
  const change = (name, parse) => (event) => {
    state[name] = parse(event.target.value);
    if (name === "environment") {
      const there = roundsOf(view);
      if (!there.includes(state.rounds)) state.rounds = there[there.length - 1];
      horizons.replaceChildren(choose("Rounds T", there, state.rounds, change("rounds", Number)));
    }
    view.refresh();
  };
  const horizons = make("div", {}, choose("Rounds T", roundsOf(view), state.rounds, change("rounds", Number)));
  const flip = (name) => (event) => {
    state[name] = !state[name];
    event.currentTarget.setAttribute("aria-pressed", state[name]);
    view.refresh();
  };
  return make("aside", { "aria-label": "What to show" },
    studies.length > 1 ? choose("Study", studies.map((one) => one.name), study.name,
      (event) => showStudy(event.target.selectedIndex)) : null,
    choose("Problem", view.environments, state.environment, change("environment", String)),
    horizons,
    view.epsilons.length ? choose("Epsilon of private policies", view.epsilons, state.epsilon, change("epsilon", Number)) : null,
    make("div", { class: "switches" },
      make("button", { type: "button", "aria-pressed": "false", id: "log", click: flip("log") }, "Log axes"),
      make("button", { type: "button", "aria-pressed": "false", id: "overlay", click: flip("overlay") }, "One chart")),
    // On a phone the results come first.
    make("details", { class: "legend", open: matchMedia("(min-width: 861px)").matches ? "" : null },
      make("summary", {}, "Policies"), legend(view)));
}

function choose(title, values, chosen, change) {
  if (values.length < 2) return make("span", { hidden: "" });
  return make("label", {}, title, make("select", { change },
    values.map((value) => make("option", { value, selected: value === chosen ? "" : null }, typeof value === "number" ? figure(value) : value))));
}

function roundsOf({ study, state }) {
  return sorted(study.series.filter((one) => one.environment === state.environment).map((one) => one.rounds));
}

/** Players in groups of one promise: unlike promises never stand in one group. */
function promiseGroups({ players }) {
  return unique(players.map((player) => player.promise.label)).map((label) => ({
    label,
    promise: players.find((player) => player.promise.label === label).promise,
    members: players.map((player, number) => ({ player, number })).filter(({ player }) => player.promise.label === label),
  }));
}

/** What a promise is, in words. */
function terms(promise) {
  if (promise.model === "none") return "nothing is promised";
  if (promise.model === "perfect") return "perfect privacy: decisions do not depend on data";
  return `${promise.kind === "pure" ? "pure" : "with a delta"}; per ${promise.unit}; protects ${promise.protects}`;
}

function legend(view) {
  const { study, state } = view;
  return promiseGroups(study).map(({ promise, members }) => {
    const buttons = members.map(({ player, number }) =>
      make("button", { type: "button", "aria-pressed": String(!state.hidden.has(number)), "data-player": number,
        click: (event) => {
          const hide = !state.hidden.has(number);
          state.hidden[hide ? "add" : "delete"](number);
          event.currentTarget.setAttribute("aria-pressed", String(!hide));
          view.refresh();
        } }, sample(player, study.dashes), make("span", {}, player.policy)));
    const all = make("button", { type: "button", "aria-label": `Show or hide all: ${promise.label}`, click: () => {
      const hide = members.some(({ number }) => !state.hidden.has(number));
      members.forEach(({ number }, i) => {
        state.hidden[hide ? "add" : "delete"](number);
        buttons[i].setAttribute("aria-pressed", String(!hide));
      });
      view.refresh();
    } }, "all");
    return make("div", { class: "promise", role: "group", "aria-label": promise.label },
      make("div", { class: "head" }, make("h3", {}, MODELS[promise.model]), members.length > 1 ? all : null),
      make("small", {}, terms(promise)), make("div", { class: "players" }, buttons));
  });
}

/** Series of the chosen problem whose player is shown; others of its choice by `where`. */
function chosen({ study, state }, where = {}) {
  const here = { environment: state.environment, rounds: state.rounds, epsilon: state.epsilon, ...where };
  return study.series.filter((one) =>
    (here.environment === null || one.environment === here.environment) &&
    (here.rounds === null || one.rounds === here.rounds) &&
    (here.epsilon === "any" || one.epsilon === null || one.epsilon === here.epsilon) &&
    !state.hidden.has(one.player));
}

/** Charts of one trust model each, on the same axes; or one chart with everything.
    Uniform play is in all of them, in grey; so are the same policies without noise, if they are few. */
function facets(view, lines, axes, title, without = []) {
  const { study, state } = view;
  const model = (line) => study.players[line.player].promise.model;
  const models = unique(lines.map(model));
  const own = models.filter((each) => each !== "perfect" && !without.includes(each));
  const groups = state.overlay || !own.length
    ? [{ name: models.map((each) => MODELS[each].split(":")[0]).join(" · "), lines }]
    : own.map((each) => {
        const members = lines.filter((line) => model(line) === each);
        const policies = new Set(members.map((line) => study.players[line.player].policy));
        const bare = lines.filter((line) => each !== "none" && model(line) === "none" && policies.has(study.players[line.player].policy));
        const beside = [...lines.filter((line) => model(line) === "perfect"), ...(bare.length < 3 ? bare : [])];
        return { name: MODELS[each], lines: [
          ...beside.map((line) => ({ ...line, quiet: true })),
          ...members.map((line) => ({ ...line, name: line.short })),
        ] };
      });
  const drawn = groups.flatMap((group) => group.lines);
  return make("div", { class: groups.length === 1 ? "facets one" : "facets" }, groups.map((group) => {
    const host = make("div", { class: "plot" });
    view.stops.push(chart(host, { title: `${title}. ${group.name}`, lines: group.lines, dashes: study.dashes,
      x: { ...axes.x, span: span(drawn, 0, axes.x.log) }, y: { ...axes.y, span: span(drawn, 1, axes.y.log) } }));
    const promises = unique(group.lines.filter((line) => !line.quiet).map((line) => study.players[line.player].promise.label));
    const unlike = promises.length > 1 ? `${promises.length} unlike promises, told apart by dashes` : terms(study.players[group.lines[group.lines.length - 1].player].promise);
    return make("div", { class: "facet" }, make("h3", {}, group.name, make("small", {}, unlike)), host);
  }));
}

/** One line of a chart, named after its player and told apart by delta where need be. */
function line(view, series, points, more = {}) {
  const { study } = view;
  const player = study.players[series.player];
  const twins = study.series.filter((one) => one.player === series.player && one.epsilon === series.epsilon &&
    one.environment === series.environment && one.rounds === series.rounds);
  const delta = twins.length > 1 ? `, delta ${series.delta}` : "";
  const budget = series.epsilon === null ? "" : `epsilon ${figure(series.epsilon)}; `;
  return { key: `${series.player}:${series.epsilon}:${series.delta}`, name: player.label + delta, full: player.label + delta, short: player.policy + delta, player: series.player, mark: player, quiet: player.promise.model === "perfect",
    detail: `${budget}${player.promise.label}${series.note ? `; ${series.note}` : ""}`, points, ...more };
}

const around = ([mean, error]) => [mean, ...(error === null ? [null, null] : [mean - 2 * error, mean + 2 * error])];

function section(id, title, note, ...children) {
  return make("section", { id, "aria-labelledby": `${id}-title` },
    make("h2", { id: `${id}-title` }, title), note ? make("p", { class: "note" }, note) : null, ...children);
}

function where({ state, epsilons }, budget = true) {
  return `${state.environment}, T = ${figure(state.rounds)}${budget && epsilons.length ? `, epsilon ${figure(state.epsilon)} where there is a budget` : ""}`;
}

function regretSection(view) {
  const { study, state } = view;
  if (!study.series.length) return null;
  const lines = chosen(view).map((one) => line(view, one, study.grids[one.grid].map((round, i) => {
    const error = one.error === null ? null : one.error[i];
    return [round, ...around([one.curve[i], error])];
  })));
  return section("regret", "Cumulative regret",
    `Mean reward lost to the best action, summed over rounds. Line: mean over seeds; band: two standard errors of the mean. ${where(view)}.`,
    lines.length ? facets(view, lines, {
      x: { label: "rounds played", name: "round", log: state.log }, y: { label: "cumulative regret", log: state.log },
    }, "Cumulative regret") : empty());
}

const empty = () => make("p", { class: "note" }, "Nothing is chosen here: switch a policy on.");

/** Final regret as a share of uniform play against epsilon or T. */
function sweep(view, series, axis) {
  const keys = unique(series.map((one) => (axis === "epsilon" ? one.player : `${one.player}:${one.epsilon}:${one.delta}`)));
  const span = axis === "epsilon" ? [view.epsilons[0], view.epsilons[view.epsilons.length - 1]] : [];
  return keys.map((key) => {
    const same = series.filter((one) => (axis === "epsilon" ? one.player : `${one.player}:${one.epsilon}:${one.delta}`) === key && one.ratio);
    if (!same.length) return null;
    // What spends no budget is the same for every epsilon.
    const points = same.flatMap((one) =>
      (axis === "epsilon" && one.epsilon === null ? span : [one[axis]]).map((at) => [at, ...around(one.ratio)]));
    return line(view, same[0], points.sort((a, b) => a[0] - b[0]), { dots: true });
  }).filter(Boolean);
}

function epsilonSection(view) {
  if (view.epsilons.length < 2) return null;
  const lines = sweep(view, chosen(view, { epsilon: "any" }), "epsilon");
  return section("epsilon", "Regret against epsilon",
    `Final regret as a share of uniform play (1 is no better than chance), log axes; level lines spend no budget. Points: mean and two standard errors. ${where(view, false)}.`,
    lines.length ? facets(view, lines, {
      x: { label: "epsilon: smaller is more private", name: "epsilon", log: true, ticks: view.epsilons }, y: { label: "regret / uniform", log: true },
    }, "Regret against epsilon", ["none"]) : empty());
}

function horizonSection(view) {
  const { state, epsilons } = view;
  if (roundsOf(view).length < 2) return null;
  const lines = sweep(view, chosen(view, { rounds: null }), "rounds");
  return section("horizon", "Regret against the horizon",
    `Final regret of runs planned for T rounds, as a share of uniform play, log axes. ${state.environment}${epsilons.length ? `, epsilon ${figure(state.epsilon)} where there is a budget` : ""}.`,
    lines.length ? facets(view, lines, {
      x: { label: "rounds T", name: "T =", log: true, ticks: roundsOf(view) }, y: { label: "regret / uniform", log: true },
    }, "Regret against the horizon") : empty());
}

const plusMinus = (mean) => (mean === null ? "–" : figure(mean[0]) + (mean[1] === null ? "" : ` ± ${figure(2 * mean[1])}`));

function table(caption, columns, ...bodies) {
  return make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, columns.map(([name, number]) => make("th", { scope: "col", class: number ? "number" : null }, name)))), bodies));
}

const cell = (text) => make("td", { class: "number" }, text);

function nameCell(study, one, name = "label") {
  const player = study.players[one.player];
  return make("th", { scope: "row" }, make("span", { class: "who" }, sample(player, study.dashes),
    make("span", {}, player[name], one.note ? make("small", {}, ` ${one.note}`) : null)));
}

/** Rows in groups of one promise, best first, each compared on its own seeds with one of its group. */
function finalSection(view) {
  const { study, state } = view;
  const rows = chosen(view).map((one) => ({ one, place: study.series.indexOf(one) }));
  if (!rows.length) return null;
  const simple = rows.some(({ one }) => one.simple);
  const columns = [["policy"], ["seeds", 1], ["final regret", 1], ["min to max", 1], ["share of uniform", 1],
    ...(simple ? [["simple regret", 1]] : []), ["difference (95 % interval)", 1], ["p", 1]];
  const bodies = promiseGroups(study).map(({ label, promise }) => {
    const mine = rows.filter(({ one }) => study.players[one.player].promise.label === label)
      .sort((a, b) => a.one.regret[0] - b.one.regret[0]);
    if (!mine.length) return null;
    const first = mine.reduce((a, b) => (b.place < a.place ? b : a)).place;
    const against = mine.some(({ place }) => place === state.against[label]) ? state.against[label] : first;
    const pick = make("label", {}, "compared with ", make("select", { "aria-label": `compared with, for ${label}`, change: (event) => {
      state.against[label] = Number(event.target.value);
      view.refresh();
      // The table is new: put the keyboard back where it was.
      [...document.querySelectorAll("#final select")].find((each) => each.getAttribute("aria-label") === `compared with, for ${label}`)?.focus();
    } }, mine.map(({ one, place }) => make("option", { value: place, selected: place === against ? "" : null }, study.players[one.player].policy))));
    return make("tbody", {},
      make("tr", { class: "group" }, make("th", { scope: "rowgroup", colspan: columns.length },
        make("span", {}, `${MODELS[promise.model].split(":")[0]}: ${terms(promise)}`, mine.length > 1 ? pick : null))),
      mine.map(({ one, place }) => make("tr", {}, nameCell(study, one, "policy"), cell(String(one.seeds.length)), cell(plusMinus(one.regret)),
        cell(`${figure(one.regret[2])} to ${figure(one.regret[3])}`), cell(plusMinus(one.ratio)), simple ? cell(plusMinus(one.simple)) : null,
        ...(mine.length > 1 ? versus(study, place, against) : [make("td", { class: "number soft", colspan: 2 }, "alone in this promise")]))));
  });
  return section("final", "Final regret",
    `${where(view)}. Mean ± two standard errors. Differences are paired: both policies met the same users under the same seeds. Interval: Student's t on the differences. p: sign-flip test, two-sided, all flips up to 14 seeds, else 16,384 random ones; n seeds cannot give less than 2/2ⁿ. Not corrected for the number of comparisons. Only policies of one promise and one epsilon are compared.`,
    table("Final regret by promise", columns, bodies));
}

function versus(study, place, against) {
  if (place === against) return [make("td", { class: "number soft", colspan: 2 }, "reference")];
  const pair = study.pairs.find(([first, second]) => (first === place && second === against) || (first === against && second === place));
  if (!pair) return [make("td", { class: "number soft", colspan: 2 }, "no common seed")];
  const [first, , seeds, difference, low, high, p] = pair;
  const sign = first === place ? 1 : -1;
  const [from, to] = sign > 0 ? [low, high] : [high, low];
  const signed = (value) => (value > 0 ? "+" : "") + figure(value).replace("-", "−");
  return [cell(signed(sign * difference) + (low === null ? "" : ` (${signed(sign * from)} to ${signed(sign * to)})`)),
    cell(p === null ? "–" : `${p < 0.001 ? "< 0.001" : figure(p)}${seeds < study.series[place].seeds.length ? ` (n = ${seeds})` : ""}`)];
}

function epochSection(view) {
  const { study } = view;
  const series = chosen(view).filter((one) => one.epochs.length);
  if (!series.length) return null;
  const panel = (name, title, words, log) => {
    const lines = series.map((one) => line(view, one, one.epochs.filter((epoch) => epoch[name] !== null && (!log || epoch[name] > 0))
      .map((epoch) => [epoch.rounds, epoch[name], null, null]), { dots: true })).filter((each) => each.points.length);
    if (!lines.length) return null;
    const host = make("div", { class: "plot" });
    view.stops.push(chart(host, { title, lines, dashes: study.dashes,
      x: { label: "rounds played when the epoch closed", name: "round", log: true, span: span(lines, 0, true) },
      y: { label: title.toLowerCase(), log, span: log ? span(lines, 1, true) : [0, 1] } }));
    return make("div", { class: "facet" }, make("h3", {}, title, make("small", {}, words)), host);
  };
  return section("epochs", "What each epoch told",
    `Means over seeds of what the policies publish. ${where(view)}. Unlike promises are told apart by dashes; without privacy there is no noise to draw.`,
    make("div", { class: "facets" },
      panel("noise_scale", "Noise", "standard deviation of the noise on the released sum, or on each local report: unlike things, see the promise", true),
      panel("width", "Width", "of the confidence interval that decides which actions stay in play", true),
      panel("predicted_error", "Predicted error", "root mean square over the pairs in play", true),
      panel("noise_share", "Share of noise", "of the variance of the release: the rest is users and rewards", false)));
}

/** What policies noticed of kernel, basis and pool, each kind once a run. */
function noticeSection(view) {
  const { study } = view;
  const rows = chosen(view).flatMap((one) => one.notices.map((notice) => ({ one, notice })));
  if (!rows.length) return null;
  return section("notices", "What does not fit", `Notices of the policies, with the words of the first seed that has them. ${where(view)}.`,
    table("Notices by policy", [["policy"], ["notice"], ["seeds", 1], ["in words"]],
      make("tbody", {}, rows.map(({ one, notice }) => make("tr", {}, nameCell(study, one), make("td", {}, notice.kind),
        cell(`${notice.seeds} of ${one.seeds.length}`), make("td", {}, notice.text))))));
}

/** Which pairs of context and action are still in play after each epoch. */
function mapSection(view) {
  const { study } = view;
  const series = chosen(view).filter((one) => one.active && one.active.epochs.length);
  if (!series.length) return null;
  return section("maps", "Active sets",
    `Pairs still in play after each epoch, first seed. Down: contexts; across: actions. ${where(view)}.`,
    make("p", { class: "note" }, "none", make("span", { class: "ramp", "aria-hidden": "true" }), "all pairs of a cell are in play"),
    series.map((one) => make("div", {}, make("h3", {}, study.players[one.player].label, make("small", {}, ` ${study.players[one.player].promise.label}`)),
      make("div", { class: "maps" }, one.active.epochs.map((epoch) => map(one.active, epoch))))));
}

function map(active, { epoch, rows }) {
  const shares = rows.map((row) => [...row].map((digit) => Number(digit) / 9));
  const mean = shares.flat().reduce((a, b) => a + b, 0) / shares.flat().length;
  const canvas = make("canvas", { width: shares[0].length, height: shares.length, role: "img",
    "aria-label": `After epoch ${epoch}, ${percent(mean)} of the pairs are in play` });
  const words = `epoch ${epoch}: ${percent(mean)}`;
  const caption = make("figcaption", {}, words);
  // Painted in the colours of the theme, and again when it changes.
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).match(/[0-9a-f]{2}/gi).map((each) => parseInt(each, 16));
  const colours = () => {
    const [paper, ink] = [colour("--paper"), colour("--c0")];
    const pen = canvas.getContext("2d");
    shares.forEach((row, y) => row.forEach((share, x) => {
      pen.fillStyle = `rgb(${paper.map((from, i) => Math.round(from + share * (ink[i] - from))).join(",")})`;
      pen.fillRect(x, y, 1, 1);
    }));
  };
  colours();
  canvas.addEventListener("theme", colours);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.min(shares[0].length - 1, Math.floor(((event.clientX - box.left) / box.width) * shares[0].length));
    const y = Math.min(shares.length - 1, Math.floor(((event.clientY - box.top) / box.height) * shares.length));
    if (x >= 0 && y >= 0) caption.textContent = `context ${figure(active.contexts[y])}, action ${figure(active.actions[x])}: ${percent(shares[y][x])}`;
  });
  canvas.addEventListener("pointerleave", () => { caption.textContent = words; });
  return make("figure", {}, canvas, caption);
}

function costSection(view) {
  const { study } = view;
  const rows = chosen(view).filter((one) => one.seconds !== null).sort((a, b) => a.seconds - b.seconds);
  if (!rows.length) return null;
  const most = Math.max(...rows.map((one) => one.seconds));
  const bar = (share) => {
    const element = make("span", { class: "bar" });
    element.style.width = `${100 * share}%`;
    return make("td", { class: "bars", "aria-hidden": "true" }, element);
  };
  return section("cost", "Time and memory", `Mean seconds of a run; largest peak memory of the process, interpreter included. ${where(view)}.`,
    table("Time and memory by policy", [["policy"], ["promise"], ["seconds", 1], [""], ["peak MB", 1]],
      make("tbody", {}, rows.map((one) => make("tr", {}, nameCell(study, one), make("td", {}, study.players[one.player].promise.model),
        cell(figure(one.seconds)), bar(one.seconds / most), cell(one.memory === null ? "–" : figure(one.memory / 1e6)))))));
}

function promiseSection(view) {
  const { study } = view;
  if (!study.players.length) return null;
  const list = study.players.map(({ label, promise }) => make("tr", {}, make("th", { scope: "row" }, label), make("td", {}, MODELS[promise.model]),
    make("td", {}, { none: "nothing", perfect: "everything: no data are used" }[promise.model] ?? promise.protects),
    make("td", {}, ["none", "perfect"].includes(promise.model) ? "" : promise.unit),
    make("td", {}, ["none", "perfect"].includes(promise.model) ? "" : promise.kind)));
  return section("promises", "Promises and certificates",
    "Everything on this page is a seeded simulation and protects nobody. A certificate below is what a private run with the same settings would carry; there is none for data sets and tables, whose rows come back.",
    table("What each policy promises", [["policy"], ["who is trusted"], ["protects"], ["unit"], ["kind"]], make("tbody", {}, list)),
    chosen(view).filter((one) => one.certificate !== null).map((one) => certificateDetails(study, one)));
}

function certificateDetails(study, { player, environment, rounds, certificate }) {
  const { claim, would_certify: { statement, assumptions, ...terms } } = study.certificates[certificate];
  const show = (value) => {
    if (value === null || value === undefined) return "–";
    if (typeof value === "object") return Object.entries(value).map(([key, each]) => `${key} ${show(each)}`).join(", ");
    return typeof value === "number" && Math.abs(value) > 0 && Math.abs(value) < 0.001 ? value.toExponential() : String(value);
  };
  return make("details", {},
    make("summary", {}, `What a private run of ${study.players[player].label} would certify: epsilon ${figure(terms.epsilon)}, delta ${figure(terms.delta)}; ${environment}, T = ${figure(rounds)}`),
    make("p", {}, make("b", {}, "Claim of this simulation: "), claim),
    statement ? make("p", {}, statement) : null,
    make("dl", {}, Object.entries(terms).flatMap(([key, value]) => [make("dt", {}, key.replaceAll("_", " ")), make("dd", {}, show(value))])),
    assumptions && assumptions.length ? [make("h3", {}, "Assumptions"), make("ol", {}, assumptions.map((each) => make("li", {}, each)))] : null);
}

function failureSection({ study }) {
  if (!study.failures.length) return null;
  return section("failures", "Failed cells", "The rest of the study is not affected. Run the study with --retry to play these again.",
    table("Failed cells and their errors", [["policy"], ["cells", 1], ["error"], ["problem"], ["T"], ["epsilon"], ["seeds"]],
      make("tbody", {}, study.failures.map((one) => make("tr", {}, make("th", { scope: "row" }, one.policy), cell(figure(one.cells)),
        make("td", { class: "error" }, one.error || "unknown"), make("td", {}, one.environment),
        [one.rounds, one.epsilon, one.seed].map((values) => make("td", {}, values.map(figure).join(", "))))))));
}

function studySection({ study }) {
  return study.text ? section("study", "The study file", null, make("details", {}, make("summary", {}, `${study.name}.toml`), make("pre", { tabindex: 0 }, study.text))) : null;
}

function foot({ study }) {
  return make("footer", {}, `Written by capri ${study.versions.join(", ")} from seeded simulations: no number on this page carries a privacy claim. ${study.tables.length ? `Numbers of ${study.tables.join(", ")} are ${TABLE_ALARM}. ` : ""}The page holds all its data and asks the network for nothing.`);
}

showStudy(0);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const canvas of document.querySelectorAll(".maps canvas")) canvas.dispatchEvent(new Event("theme"));
});
