// Tables of a run: its keys, its configuration, its attempts, and the time that it spent in each phase.

import { h, liveRow, syncRows, setText, badge, rerender, fold, scrollable, table } from "/static/dom.js";
import { isLoss, keyFilter } from "/static/run/keys.js";
import { bytes, number, percent, short, span, when, plain } from "/static/format.js";

const MAX_ROWS = 300; // Use the filter to find others.

export function scrollTable(caption, heads, body) {
  return scrollable(caption, table(heads, body));
}

export class Metrics {
  constructor(/** @type {RunSelection} */ selection) {
    this.selection = selection;
    this.count = h("span.quiet");
    this.container = h("div");
    this.root = fold("Metrics", {}, [this.count], this.container);
  }

  update({ metrics, attempt_list: list }) {
    const { ranks, attempt, filter } = this.selection;
    const lowest = metrics.reduce((least, item) => Math.min(least, item.rank), Infinity);
    const matches = keyFilter(filter);
    const isSelected = (item) =>
      (ranks !== "lowest" || item.rank === lowest) && (attempt === undefined || item.attempt === attempt);
    const shown = metrics.filter((item) => isSelected(item) && matches(item.key));
    const indexes = new Map([...metrics.keys()].reverse().map((index) => [metrics[index].key, index]));
    shown.sort((a, b) => Number(isLoss(b.key)) - Number(isLoss(a.key)) || indexes.get(a.key) - indexes.get(b.key) ||
      a.rank - b.rank);
    this.root.hidden = !metrics.length;
    setText(this.count,
      shown.length > MAX_ROWS ? `first ${MAX_ROWS} of ${shown.length}; search for a key above to see others` : "");
    const hasAttempts = list.length > 1;
    const always = ["Rank", "Last", "Min", "Max", "Mean", "Std", "Count", "Non-finite"];
    const numbers = hasAttempts ? ["Attempt", ...always] : always;
    const heads = [["Key"], ...numbers.map((name) => [name, "number"])];
    if (heads.length !== this.columns) this.#createTable(heads);
    syncRows(this.body, shown.slice(0, MAX_ROWS), (item) => `${item.rank} ${item.attempt} ${item.key}`,
      () => metricRow(hasAttempts));
  }

  #createTable(heads) {
    this.columns = heads.length;
    this.body = h("tbody");
    this.container.replaceChildren(scrollTable("Metrics", heads, this.body));
  }
}

function metricRow(hasAttempts) {
  const kinds = ["th.name", ...Array(hasAttempts ? 9 : 8).fill("td.number")];
  return liveRow(kinds, (item, row) => {
    row.lastChild.classList.toggle("bad", item.nonfinite > 0);
    return [item.key, ...(hasAttempts ? [item.attempt] : []), item.rank, number(item.last), number(item.min),
      number(item.max), number(item.mean), number(item.std), item.count, item.nonfinite];
  });
}

// Returns every value of nested objects with its path: { a: { b: 1 } } becomes [["a.b", 1]].
export function flatten(value, path = "") {
  const nested = value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length;
  if (!nested) return path ? [[path, value]] : [];
  return Object.entries(value).flatMap(([name, inner]) => flatten(inner, path ? `${path}.${name}` : name));
}

// Returns the last attempt of a run that states its configuration.
const configured = (run) => run.attempt_list.findLast((item) => item.config !== null && item.config !== undefined);

// Returns the configuration of a run: values by their path.
export function settingsOf(run) {
  return new Map(flatten(configured(run)?.config ?? {}));
}

export function configuration() {
  return section("Configuration", (run) => {
    const last = configured(run);
    const note = last && run.attempt_list.length > 1 ? `of attempt ${last.attempt}` : "";
    return { note, content: last?.config, make: () => configurationTable(flatten(last?.config ?? {})) };
  });
}

function configurationTable(pairs) {
  if (!pairs.length) return h("p.quiet", {}, "No configuration reported. Pass it to trackside.init(config={…}).");
  const lines = pairs.map(([name, value]) =>
    h("tr", {}, h("th.name", { scope: "row" }, name), h("td.text.mono", {}, plain(value))));
  return scrollTable("Configuration", [["Name"], ["Value"]], h("tbody", {}, lines));
}

export function model() {
  const shown = section("Model", ({ model: found }) => ({ note: found?.parameters
    ? `${found.class}, ${short(found.parameters)} parameters, ${bytes(found.bytes)}`
    : "", content: found, make: () => modules(found) }));
  const update = (run) => {
    shown.root.hidden = !run.model?.modules;
    shown.update(run);
  };
  return { root: shown.root, update };
}

function modules(found) {
  const heads = [["Module"], ["Class"], ["Parameters", "number"], ["Type"], ["Device"]];
  const rows = (found?.modules ?? []).map(([name, kind, count, type, device]) =>
    h("tr", {}, h("th.name.mono", { scope: "row" }, name || "(root)"), h("td", {}, kind),
      h("td.number", {}, count.toLocaleString("en")), h("td", {}, type), h("td", {}, device)));
  return scrollTable("Model", heads, h("tbody", {}, rows));
}

export function attempts() {
  const heads = [["Attempt"], ["State"], ["Started"], ["Duration", "number"], ["Host"], ["Commit"], ["Process"]];
  return section("Attempts", ({ attempt_list: list, resumes = [] }) => {
    const withoutPhases = list.map((item) => ({ ...item, phases: undefined, lost: undefined,
      resumed: resumes.find(({ attempt: number }) => number === item.attempt) }));
    return { note: "", content: withoutPhases,
      make: () => scrollTable("Attempts", heads, h("tbody", {}, [...withoutPhases].reverse().map(attempt))) };
  });
}

function attempt(item) {
  const commit = item.git_commit ? `${item.git_commit.slice(0, 10)}${item.git_dirty ? " + changes" : ""}` : "";
  const state = badge(item.state);
  const lasted = item.ended === null ? "" : span(item.ended - item.started);
  return h("tr", {},
    h("th", { scope: "row" }, String(item.attempt)),
    h("td.text", {}, state, item.cause ? h("div.quiet", {}, item.cause) : "",
      item.resumed ? verdict(item.resumed) : ""),
    h("td", {}, when(item.started)),
    h("td.number", {}, lasted),
    h("td", {}, item.host ?? ""),
    h("td.mono", { title: item.git_commit }, commit),
    h("td", {}, process(item)));
}

// Returns the verdict on a resume; its cause is empty if the training continues.
function verdict({ text, cause, continues }) {
  const mark = continues === null
    ? "" : badge(cause ? "warning" : "finished", cause ? `does not continue: ${cause}` : "continues");
  return h("div.run-verdict", {}, mark, h("div.quiet", {}, text));
}

const FACTS = { command: "Command", git_commit: "Commit", host: "Host", world_size: "World size",
  total_steps: "Total steps", framework: "Framework", python: "Python", platform: "Platform", job_id: "Job",
  k8s_pod: "Pod", directory: "Directory" };

// The facts of an attempt by name: code, machine, packages and environment.
/** @returns {[string, any][]} */
export function factsOf(attempt) {
  const facts = Object.entries(FACTS).map(([name, title]) => [title, [attempt[name] ?? []].flat().join(" ")])
    .filter(([, text]) => text);
  const commit = facts.find(([title]) => title === "Commit");
  if (commit) commit[1] = `${commit[1].slice(0, 10)}${attempt.git_dirty ? " + changes" : ""}`;
  const named = (field, prefix) => Object.entries(attempt[field] ?? {}).map(([name, value]) => [prefix + name, value]);
  return [...facts, ...flatten(attempt.hardware ?? {}), ...named("packages", "package "), ...named("environ", "$")];
}

function process(item) {
  const all = [...flatten(item.config ?? {}), ...factsOf(item)];
  const list = all.map(([name, value]) => [h("dt", {}, name), h("dd.mono", {}, plain(value))]);
  if (!all.length) return "";
  return h("details", {}, h("summary", {}, "Configuration, command, packages"), h("dl.facts.run-process", {}, list));
}

// A section of the page. `about(run)` returns its note, the content's data, and a function that makes the content.
export function section(name, about) {
  const head = h("span.quiet");
  const body = h("div");
  const root = fold(name, {}, [head], body);
  const update = (run) => {
    const { note, content, make } = about(run);
    setText(head, note);
    rerender(body, JSON.stringify(content ?? null), make);
  };
  return { root, update };
}

const COLORS = 8;
const PHASES = ["data", "forward", "backward", "optimizer", "sync", "eval", "checkpoint", "other"];

// The color of a phase is the same on all pages; that of another name is its place.
export const phaseColor = (name, index) => (PHASES.includes(name) ? PHASES.indexOf(name) : index % COLORS);

// Returns [phase, seconds] summed over some attempts, the longest first.
export function phaseTotals(attempts) {
  const byPhase = new Map();
  for (const { phases = {} } of attempts) {
    for (const [phase, seconds] of Object.values(phases).flatMap(Object.entries))
      byPhase.set(phase, (byPhase.get(phase) ?? 0) + seconds);
  }
  return [...byPhase].filter(([, seconds]) => seconds > 0).sort(([, a], [, b]) => b - a);
}

export function phases() {
  return section("Time by phase", ({ attempt_list: list }) => {
    const byPhase = phaseTotals(list);
    const ranks = Math.max(...list.map((item) => Object.keys(item.phases ?? {}).length));
    return { note: ranks > 1 ? `sum of ${ranks} ranks` : "", content: byPhase, make: () => phaseTable(byPhase) };
  });
}

function phaseTable(byPhase) {
  if (byPhase.length) return timeTable(byPhase, "Phase", "Time by phase");
  return h("p.quiet", {}, "No phases reported. Name them with run.phase(\"data\") or run.data(loader).");
}

// Returns a bar and a table of [name, seconds]; `about` describes the bar, and `total` is what they are shares of.
export function timeTable(times, heading, about, total = times.reduce((sum, [, seconds]) => sum + seconds, 0)) {
  const texts = times.map(([name, seconds]) => `${name} ${percent(seconds / total)}`);
  const parts = times.map(([, seconds], index) => {
    const part = h("span", { class: `run-phase phase-${phaseColor(times[index][0], index)}`, title: texts[index] });
    part.style.flexGrow = seconds / total;
    return part;
  });
  const lines = times.map(([name, seconds], index) => {
    const head = h("th.name", { scope: "row" }, h("span", { class: `run-key phase-${phaseColor(name, index)}` }), name);
    return h("tr", {}, head, h("td.number", {}, span(seconds)), h("td.number", {}, percent(seconds / total)));
  });
  const stack = h("div.run-stack", { role: "img", "aria-label": `${about}: ${texts.join(", ")}` }, parts);
  return h("div.run-phases", {}, stack, table([heading, ["Time", "number"], ["Share", "number"]], lines));
}
