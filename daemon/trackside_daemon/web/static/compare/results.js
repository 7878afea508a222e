// The results and the configuration of runs as two tables: last, lowest and highest values of keys, and which
// are better.

import { h, setText, scrollable } from "/static/dom.js";
import { span, number, plural, runAddress, plain, real } from "/static/format.js";
import { dot } from "/static/picker.js";
import { flatten, settingsOf } from "/static/run/tables.js";
import { HIGHER_IS_BETTER, LOWER_IS_BETTER, SPREAD } from "/static/vocabulary.js";
import { isLoss } from "/static/run/keys.js";

const EVALUATION = /(^|[/_.])(eval|evaluation|val|valid|validation|dev|test)([/_.]|$)/i;

// Returns { last, min, max } of each key of a run's lowest rank, over all attempts; values as in the API.
export function keySummaries(run) {
  const lowest = run.metrics.reduce((low, metric) => Math.min(low, metric.rank), Infinity);
  const summaries = new Map();
  for (const metric of run.metrics.filter((item) => item.rank === lowest)) {
    const previous = summaries.get(metric.key);
    const pick = (choose, name) => {
      const finite = [previous?.[name], metric[name]].filter((value) =>
        value !== undefined && value !== null && !Number.isNaN(real(value)));
      if (!finite.length) return metric[name];
      return finite.reduce((kept, other) => (choose(real(kept), real(other)) === real(kept) ? kept : other));
    };
    summaries.set(metric.key, { last: metric.last, min: pick(Math.min, "min"), max: pick(Math.max, "max") });
  }
  return summaries;
}

// Returns the keys that at least `minimum` runs have: losses first, evaluation losses after the others, then by name.
export function sharedKeys(all, minimum) {
  const counts = new Map();
  for (const key of all.flatMap((metric) => [...metric.keys()])) counts.set(key, (counts.get(key) ?? 0) + 1);
  const keys = [...counts].filter(([, count]) => count >= minimum).map(([key]) => key);
  const order = (key) => (isLoss(key) ? Number(EVALUATION.test(key)) : 2);
  return keys.sort((a, b) => order(a) - order(b) || a.localeCompare(b));
}

// Returns whether less or more is better, by the words of the key and the rules of `trackside compare`, or undefined.
export function betterDirection(key) {
  const words = (key.match(/[A-Z]?[a-z]+\d?|[A-Z]+\d?/g) ?? []).map((word) => word.toLowerCase());
  const has = (list) => words.some((word) => list.includes(word));
  if (has(SPREAD)) return undefined;
  if (has(LOWER_IS_BETTER)) return "less";
  return has(HIGHER_IS_BETTER) ? "more" : undefined;
}

// Returns the indexes of the best values; empty unless at least two values differ.
function bestIndexes(key, values) {
  const direction = betterDirection(key);
  const numbers = values.map(real).filter(Number.isFinite);
  if (!direction || numbers.length < 2 || new Set(numbers).size < 2) return [];
  const top = direction === "less" ? Math.min(...numbers) : Math.max(...numbers);
  return values.flatMap((value, index) => (real(value) === top ? [index] : []));
}

const LONG_TEXT = 160; // Longer values get a scrollable box.
const RUN_COLUMNS = [["Run"], ["State"], ["Steps", "number"], ["Duration", "number"]];
const COLUMNS = ["last", "min", "max"];

const ATTEMPT_FIELDS = [
  ["command", "Command"],
  ["git_commit", "Commit"],
  ["host", "Host"],
  ["world_size", "World size"],
  ["total_steps", "Total steps"],
  ["framework", "Framework"],
  ["python", "Python"],
  ["platform", "Platform"],
  ["job_id", "Job"],
  ["k8s_pod", "Pod"],
  ["directory", "Directory"],
];

export class Results {
  // `all`: equal settings are shown too. `onToggle(all)` is called when that changes.
  constructor(all, onToggle) {
    this.all = all;
    this.results = h("section", {});
    this.settings = h("section", {});
    this.showAll = h("input", { type: "checkbox", checked: all, onchange: () => this.#showAll() });
    this.onToggle = onToggle;
    this.root = this.results;
  }

  // Shows the values of some keys; `now` is the daemon's clock.
  update(runs, keys, now) {
    this.runs = runs;
    const rows = runs.map((run) => {
      const { started, ended, step, state } = run.document;
      return { ...run, step, state: ended === null ? (run.now?.state ?? state) : state,
        seconds: (ended ?? now) - started };
    });
    const values = rows.map(({ id, label, state, step, document, summaries }) =>
      [id, label, state, step, document.summary, keys.map((key) => summaries.get(key))]);
    const shown = JSON.stringify([values, keys]);
    if (shown !== this.shown) this.#make(rows, keys);
    this.shown = shown;
    this.results.querySelectorAll("td.took").forEach((cell, index) => setText(cell, span(rows[index].seconds)));
    this.#settings();
  }

  #make(rows, keys) {
    const hasRanks = rows.some((run) => new Set(run.document.metrics.map((item) => item.rank)).size > 1);
    const focused = this.results.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const left = this.results.querySelector(".scroll")?.scrollLeft ?? 0;
    const rankNote = hasRanks && h("p.quiet", {}, "Values of each run's lowest rank.");
    this.results.replaceChildren(...[h("h2", {}, "Results"), rankNote, results(rows, keys)].filter(Boolean));
    this.results.querySelector(".scroll").scrollLeft = left;
    if (focused) this.results.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }

  #settings() {
    const documents = this.runs.map((item) => item.document);
    const isComparison = this.runs.length > 1;
    const shown = JSON.stringify([documents.map((item) => [item.id, item.attempt_list]), this.all]);
    if (shown === this.shownSettings) return;
    this.shownSettings = shown;
    const { status, root } = configuration(this.runs, documents, this.all || !isComparison);
    const tools = h("div.tools", {}, h("span.quiet", { role: "status" }, status),
      isComparison && h("label", {}, this.showAll, "Show all"));
    this.settings.replaceChildren(
      ...[h("h2", {}, isComparison ? "What differs" : "Configuration"), tools, root].filter(Boolean));
  }

  #showAll() {
    this.all = this.showAll.checked;
    this.onToggle(this.all);
    this.#settings();
    this.showAll.focus();
  }
}

// One row per run: the results that it states, then three columns per key; the best value is marked.
function results(runs, keys) {
  const stated = [...new Set(runs.flatMap((run) => Object.keys(run.document.summary ?? {})))];
  const bestStated = stated.map((key) => bestIndexes(key, runs.map((run) => run.document.summary?.[key])));
  const head = h("thead", {},
    h("tr", {}, RUN_COLUMNS.map(columnHead), stated.map((key) => columnHead([key, "number"])),
      keys.map((key) => h("th.key", { scope: "colgroup", colspan: 3 }, key))),
    h("tr", {}, ...keys.flatMap(() => COLUMNS.map((item) => h("th.number", { scope: "col" }, item)))));
  const bestRows = keys.map((key) => COLUMNS.map((name) =>
    (isMeaningful(key, name) ? bestIndexes(key, runs.map((run) => run.summaries.get(key)?.[name])) : [])));
  const body = runs.map((run, row) =>
    h("tr", {},
      h("th.name", { scope: "row" }, withDot(run, h("a", { href: runAddress(run.id) }, run.label))),
      h(`td.${run.state}`, {}, run.state),
      h("td.number", {}, number(run.step)),
      h("td.number.took", {}, span(run.seconds)),
      ...stated.map((key, item) => cell(run.document.summary?.[key], bestStated[item].includes(row))),
      ...keys.flatMap((key, item) => COLUMNS.map((name, column) =>
        cell(run.summaries.get(key)?.[name], bestRows[item][column].includes(row), !column)))),
  );
  return scrollable("Results",
    h("table.results", {}, h("caption.spoken", {}, "Results"), head, h("tbody", {}, ...body)));
}

function columnHead([text, kind]) {
  return h(kind ? `th.${kind}` : "th", { scope: "col", rowspan: 2 }, text);
}

// A highest loss or a lowest accuracy is not marked as best.
function isMeaningful(key, name) {
  return name === "last" || bestIndexes(key, [0, 1])[0] === (name === "min" ? 0 : 1);
}

function cell(value, isBest, isFirst = false) {
  const text = value !== null && typeof value === "object" ? JSON.stringify(value) : number(value);
  return h(`td.number${isBest ? ".best" : ""}${isFirst ? ".first" : ""}`, {}, isBest && h("span.mark", {}, "best"),
    text);
}

// Returns the table of settings that differ, or of all, and a text with their number.
function configuration(runs, documents, all) {
  const groups = settings(documents);
  const count = groups.reduce((sum, [, rows]) => sum + rows.length, 0);
  const differ = groups.reduce((sum, [, rows]) => sum + rows.filter((row) => row.differs).length, 0);
  const values = plural(count, "value");
  const found = differ ? `${differ} of ${values} differ` : `All ${values} are the same`;
  const head = h("tr", {}, h("th", { scope: "col" }, "Setting"),
    ...runs.map((run) => h("th.name", { scope: "col" }, withDot(run, h("span", {}, run.label)))));
  const bodies = groups.flatMap(([title, rows]) => {
    const shown = rows.filter((row) => all || row.differs);
    if (!shown.length) return [];
    const group = h("tr", {}, h("th.group", { scope: "rowgroup", colspan: runs.length + 1 }, title));
    return h("tbody", {}, group, shown.map((row) => settingRow(row, all && runs.length > 1)));
  });
  const table = h("table.settings", {}, h("caption.spoken", {}, "Configuration"), h("thead", {}, head), ...bodies);
  return { status: runs.length < 2 ? values : found,
    root: bodies.length ? scrollable("Configuration", table) : undefined };
}

// If all settings are shown, those that differ are marked.
function settingRow({ name, values, differs }, all) {
  const title = h("th", { scope: "row" }, h("span.mono", {}, name), all && differs && h("span.mark", {}, "differs"));
  const long = (value) => h("div.long", { tabindex: 0, role: "group", "aria-label": name }, value);
  return h(all && differs ? "tr.differs" : "tr", {}, title,
    values.map((value) => h("td.text", {}, value?.length > LONG_TEXT ? long(value) : value)));
}

function withDot(run, name) {
  return h("span.titled", {}, dot(run.index), name);
}

// Returns groups [title, rows]; a value is undefined if it is unknown, which is no difference.
/** @returns {[string, { name: string, values: string[], differs: boolean }[]][]} */
function settings(runs) {
  const lastAttempts = runs.map((run) => run.attempt_list.at(-1) ?? {});
  const named = (field) => lastAttempts.map((item) => new Map(Object.entries(item[field] ?? {})));
  const [about, command] = [rowsOf(lastAttempts.map(attemptValues)), argumentsOf(lastAttempts)];
  return [
    ["Configuration", rowsOf(runs.map(settingsOf))],
    ["Command line", command],
    ["Code and machine", [...about, ...rowsOf(lastAttempts.map((item) => new Map(flatten(item.hardware))))]],
    ["Packages", rowsOf(named("packages")).sort((a, b) => a.name.localeCompare(b.name))],
    ["Environment", rowsOf(named("environ")).sort((a, b) => a.name.localeCompare(b.name))],
  ];
}

// The arguments of the command lines by name: --lr 3e-4 and --lr=3e-4 are lr.
function argumentsOf(attempts) {
  const parsed = attempts.map(({ command = [] }) => {
    const found = new Map();
    command.forEach((word, index) => {
      const [, name, value] = /^--?([\w.-]+)(?:=(.*))?$/.exec(word) ?? [];
      if (!name || /^\d/.test(name)) return;
      const next = command[index + 1];
      found.set(`--${name}`, value ?? (next !== undefined && !next.startsWith("--") ? next : "set"));
    });
    return found;
  });
  return rowsOf(parsed);
}

function attemptValues(attempt) {
  const result = new Map();
  for (const [name, title] of ATTEMPT_FIELDS) {
    const value = attempt[name];
    if (value === undefined || value === null || value === "" || value.length === 0) continue;
    result.set(title, Array.isArray(value) ? value.join(" ") : value);
  }
  if (result.has("Commit"))
    result.set("Commit", `${result.get("Commit").slice(0, 10)}${attempt.git_dirty ? " + changes" : ""}`);
  return result;
}

function rowsOf(valuesByRun) {
  const names = [...new Set(valuesByRun.flatMap((item) => [...item.keys()]))];
  return names.map((name) => {
    const values = valuesByRun.map((item) => (item.has(name) ? plain(item.get(name)) : undefined));
    const known = values.filter((value) => value !== undefined);
    return { name, values, differs: known.some((value) => value !== known[0]) };
  });
}
