// What came of runs, and what differs between them, in one table: a row of each run, with its settings and its results.

import { getJson, query } from "/static/api.js";
import { h, rerender, setText, checkbox, unseen, icon } from "/static/dom.js";
import { number, percent, plural, real } from "/static/format.js";
import { factsOf, settingsOf } from "/static/run/tables.js";
import { columnOf, sorted } from "/static/runs/columns.js";
import { RunTable } from "/static/runs/table.js";
import { betterDirection, isEvaluation, isLoss } from "/static/run/keys.js";

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
  const order = (key) => (isLoss(key) ? Number(isEvaluation(key)) : 2);
  return keys.sort((a, b) => order(a) - order(b) || a.localeCompare(b));
}

// Returns the best of some values; undefined unless at least two differ.
function bestOf(key, values) {
  const direction = betterDirection(key);
  const numbers = values.map(real).filter(Number.isFinite);
  if (!direction || new Set(numbers).size < 2) return undefined;
  return direction === "less" ? Math.min(...numbers) : Math.max(...numbers);
}

// Returns the settings of all runs: a map of each, their names, those that differ, and those somebody chose; others
// are facts of code and machine. An option not set differs, an unknown fact does not.
export function settingsOfAll(runs) {
  const lasts = runs.map((run) => run.attempt_list.at(-1) ?? {});
  const options = runs.map((run, index) => new Map([...settingsOf(run), ...argumentsOf(lasts[index])]));
  const chosen = new Set(options.flatMap((own) => [...own.keys()]));
  const all = options.map((own, index) => new Map([...own, ...factsOf(lasts[index])]));
  const names = [...new Set(all.flatMap((own) => [...own.keys()]))];
  const differing = names.filter((name) => {
    const values = all.map((own) => JSON.stringify(own.get(name)));
    return new Set(values.filter((value) => chosen.has(name) || value !== undefined)).size > 1;
  });
  return { all, names, differing, chosen };
}

// The arguments of a command line by name: --lr 3e-4 and --lr=3e-4 are --lr.
/** @returns {[string, string][]} */
function argumentsOf({ command = [] }) {
  return command.flatMap((word, index) => {
    const [, name, value] = /^--?([\w.-]+)(?:=(.*))?$/.exec(word) ?? [];
    if (!name || /^\d/.test(name)) return [];
    const next = command[index + 1];
    return [[`--${name}`, value ?? (next !== undefined && !next.startsWith("--") ? next : "set")]];
  });
}

// Kinds of columns that have a best value, and differences to the baseline.
const RESULTS = ["summary", "best", "last"];
const DELTA_WIDTH = 75;

export class Results {
  // `chosen` is { all, baseline, sort } as in the address: whether settings that are the same are shown too, the id of
  // the run that the others are compared with, and the column by which they are sorted; `set` writes it.
  constructor({ all, baseline, sort }, set) {
    this.chosen = { all, baseline, sort: { id: sort.replace(/^-/, ""), descending: sort.startsWith("-") } };
    this.set = set;
    this.runs = this.keys = [];
    this.settings = settingsOfAll([]);
    this.status = h("span.quiet", { role: "status" });
    this.code = h("div");
    this.table = new RunTable({ leads: (run) => [run ? this.#baselineButton(run) : unseen("Baseline")],
      onSort: (id) => this.#sort(id), mark: (column, run, cell) => this.#mark(column, run, cell), onWidth: () => {} });
    const tools = h("div.tools", {}, this.status, checkbox("all", "Show all", this.chosen, (changes) => {
      Object.assign(this.chosen, changes);
      set({ all: changes.all ? 1 : "" });
      this.#draw();
    }));
    this.root = h("section", {}, h("h2", {}, "What differs, and the results"), tools, this.table.root, this.code);
  }

  // Shows prepared runs, their settings of `settingsOfAll`, and the values of some keys.
  update(runs, settings, keys) {
    Object.assign(this, { runs, settings, keys });
    this.root.hidden = !runs.length;
    this.#draw();
  }

  #draw() {
    const { names: known, differing, chosen } = this.settings;
    const { sort, baseline } = this.chosen;
    const names = this.chosen.all || this.runs.length < 2 ? known : differing;
    const stated = [...new Set(this.runs.flatMap((run) => [...run.results.keys()]))];
    const settings = (areChosen) => names.filter((name) => chosen.has(name) === areChosen)
      .map((name) => `config.${name}`);
    const ids = ["name", "state", ...settings(true), ...stated.map((name) => `summary.${name}`),
      ...this.keys.flatMap((key) => (betterDirection(key) ? [`best.${key}`, `last.${key}`] : [`last.${key}`])), "step",
      "duration", ...settings(false)];
    this.base = this.runs.find((run) => run.id === baseline);
    const wider = (column) => (this.base && RESULTS.includes(column.kind) ? DELTA_WIDTH : 0);
    const columns = ids.map(columnOf).map((column) => ({ ...column, width: column.width + wider(column) }));
    this.best = new Map(columns.map((column) => [column.id, bestOf(column.title, this.runs.map(column.value))]));
    const shown = sort.id ? sorted(this.runs, columnOf(sort.id) ?? columns[0], sort.descending) : this.runs;
    this.table.show([[undefined, shown]], columns, {}, sort);
    const count = plural(known.length, "setting");
    setText(this.status, this.runs.length < 2 ? count : `${differing.length} of ${count} differ`);
    this.#showCode();
  }

  // What changed in the code, from the baseline or else the oldest run to the newest other one.
  #showCode() {
    const before = this.base ?? this.runs.at(-1);
    const after = this.runs.find((run) => run !== before);
    const [old, now] = [before, after].map((run) => run?.attempt_list.at(-1)?.git_commit);
    rerender(this.code, JSON.stringify([before?.id, after?.id, old, now]), () => {
      if (!after) return [];
      const lines = h("pre", { hidden: true, tabindex: 0, role: "region", "aria-label": "Difference of the code" });
      const show = async () => {
        const { diff } = await getJson(`code?${query({ run: [before.id, after.id] })}`).catch(({ message }) =>
          ({ diff: [message] }));
        const none = diff ? ["The code is the same."] : ["One of these runs has no stored code."];
        const kind = (line) => (/^\+(?!\+\+)/.test(line) && ".good") || (/^-(?!--)/.test(line) && ".bad") || "";
        lines.hidden = false;
        lines.replaceChildren(...(diff?.length ? diff : none).map((line) => h(`span${kind(line)}`, {}, `${line}\n`)));
      };
      return [h("p", {}, h("button.small", { onclick: show }, "Difference of the code"),
        h("span.quiet", {}, ` from ${before.label} to ${after.label} `),
        old && now && old !== now ? h("code", {}, `git diff ${old} ${now}`) : ""), lines];
    });
  }

  #baselineButton(run) {
    const isBase = run.id === this.chosen.baseline;
    const button = icon("pin", `Compare with ${run.label}`, () => {
      this.chosen.baseline = isBase ? undefined : run.id;
      this.set({ baseline: this.chosen.baseline });
      this.#draw();
    });
    button.setAttribute("aria-pressed", String(isBase));
    return button;
  }

  #sort(id) {
    const { sort } = this.chosen;
    this.chosen.sort = { id, descending: sort.id === id && !sort.descending };
    this.set({ sort: `${this.chosen.sort.descending ? "-" : ""}${id}` });
    this.#draw();
  }

  // Marks the best value of a column, and adds the difference to the baseline.
  #mark(column, run, cell) {
    if (!RESULTS.includes(column.kind)) return;
    const [value, base] = [run, this.base].map((item) => item && real(column.value(item)));
    if (value !== undefined && value === this.best.get(column.id)) cell.classList.add("best");
    if (run === this.base || !Number.isFinite(value) || !Number.isFinite(base) || !base) return;
    const change = (value - base) / Math.abs(base);
    const direction = betterDirection(column.title);
    const kind = (change < 0) === (direction === "less") ? "good" : "bad";
    const size = Math.abs(change) < 10 ? percent(change) : `${number(change, 2)} ×`;
    cell.append(h(`span.delta.${direction && change ? kind : "quiet"}`, {}, ` ${change > 0 ? "+" : ""}${size}`));
  }
}
