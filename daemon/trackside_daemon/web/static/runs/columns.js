// The columns that a table of runs can have: facts of a run, its configuration, its results, and values of its keys.

import { betterDirection } from "/static/run/keys.js";
import { flatten } from "/static/run/tables.js";
import { ENDED } from "/static/vocabulary.js";
import { number, plural, real, span, when, plain } from "/static/format.js";

const MOST_DEFAULT = 3; // Settings and results that are shown without a choice,
const LEAST_SHARE = 0.1; // if at least this part of the runs has them: one benchmark changes no list.

const FACTS = [
  { id: "name", title: "Run", width: 210, value: (run) => run.label },
  { id: "state", title: "State", width: 100, value: (run) => run.state },
  { id: "curve", title: "Loss curve", width: 130, value: (run) => real(run.loss), isNumber: true },
  { id: "loss", title: "Loss", width: 90, value: (run) => run.loss, isNumber: true },
  { id: "step", title: "Step", width: 80, value: (run) => run.step, isNumber: true },
  { id: "started", title: "Started", width: 175, value: (run) => run.started, format: when, isNumber: true,
    isTime: true },
  { id: "duration", title: "Duration", width: 95, value: (run) => run.seconds, format: span, isNumber: true },
  { id: "tags", title: "Tags", width: 160, value: (run) => run.tags.join(", ") },
  { id: "notes", title: "Notes", width: 200, value: (run) => run.notes },
  { id: "host", title: "Host", width: 150, value: (run) => run.host },
  { id: "user", title: "User", width: 90, value: (run) => run.user },
];

/** @type {Map<string, any>} The columns by id, which is asked for each run. */
const known = new Map(FACTS.map((fact) => [fact.id, fact]));

// Returns a column by its id: a fact, `config.NAME`, `summary.NAME`, `last.KEY` or `best.KEY`.
export function columnOf(id) {
  if (known.has(id)) return known.get(id);
  const [kind, name] = [id.slice(0, id.indexOf(".")), id.slice(id.indexOf(".") + 1)];
  const read = {
    config: (run) => run.settings.get(name),
    summary: (run) => run.results.get(name),
    last: (run) => run.metrics?.[name]?.last ?? undefined,
    best: (run) => run.metrics?.[name]?.[betterDirection(name) === "more" ? "max" : "min"] ?? undefined,
  }[kind];
  if (!read) return undefined;
  const title = { config: name, summary: name, last: `${name} (last)`,
    best: `${name} (${betterDirection(name) === "more" ? "highest" : "lowest"})` }[kind];
  const key = kind === "last" || kind === "best" ? name : undefined;
  return known.set(id, { id, title, width: 105, value: read, key, kind }).get(id);
}

// Returns the groups [title, ids] of all columns of some runs.
/** @returns {[string, string[]][]} */
export function allColumns(runs, keys) {
  const names = (map) => [...new Set(runs.flatMap((run) => [...map(run).keys()]))].sort();
  /** @type {[string, string[]][]} */
  const groups = [
    ["Run", FACTS.map((item) => item.id)],
    ["Results", names((run) => run.results).map((name) => `summary.${name}`)],
    ["Configuration", names((run) => run.settings).map((name) => `config.${name}`)],
    ["Keys", keys.flatMap((key) => [`last.${key}`, `best.${key}`])],
  ];
  return groups.filter(([, ids]) => ids.length);
}

// Returns the ids of the columns without a choice: the first results, and the settings in which the runs differ.
export function defaultColumns(runs) {
  const isCommon = (name) => runs.filter((run) => run.results.has(name)).length >= LEAST_SHARE * runs.length;
  const stated = [...new Set(runs.flatMap((run) => [...run.results.keys()]))];
  const results = stated.filter(isCommon).slice(0, MOST_DEFAULT);
  const settings = [...new Set(runs.flatMap((run) => [...run.settings.keys()]))];
  const differing = settings.filter((name) =>
    new Set(runs.map((run) => JSON.stringify(run.settings.get(name))).filter(Boolean)).size > 1).slice(0, MOST_DEFAULT);
  const third = runs.some((run) => run.url !== undefined) ? "host" : "curve"; // Of all machines, or of this one.
  return ["name", "state", third, "loss", "step", ...results.map((name) => `summary.${name}`),
    ...differing.map((name) => `config.${name}`), "started", "duration", "tags"];
}

// Adds what columns read to a run of the API.
export function prepared(run, now) {
  const seconds = Number.isFinite(run.started) ? (run.ended ?? now) - run.started : undefined;
  return { ...run, tags: run.tags ?? [], settings: new Map(flatten(run.config ?? {})),
    results: new Map(flatten(run.summary ?? {})), seconds };
}

// `decimals` is that of the column, so that decimal points stand below each other.
export function text(column, value, decimals) {
  if (value === undefined || value === null) return "";
  if (column.format) return column.format(value);
  if (typeof value === "number" && decimals !== undefined) return value.toFixed(decimals);
  if (typeof value === "number" || real(value) !== undefined) return number(real(value), 4);
  return plain(value);
}

// Returns the number of decimals that all numbers of a column get; undefined if some of them need an exponent.
export function commonDecimals(column, runs) {
  const numbers = runs.map(column.value).filter((value) => typeof value === "number");
  if (column.format || numbers.some((value) => value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e6)))
    return undefined;
  const decimals = (value) => (number(value, 4).split(".")[1] ?? "").length;
  return numbers.length ? Math.max(...numbers.map(decimals)) : undefined;
}

// Returns whether the column's values are numbers, as far as there are any.
export function isNumeric(column, runs) {
  if (column.isNumber) return true;
  const values = runs.map(column.value).filter((value) => value !== undefined && value !== null && value !== "");
  return values.length > 0 && values.every((value) => typeof value === "number" || real(value) !== undefined);
}

// Sorts runs by a column; those without a value come last, and NaN before them.
export function sorted(runs, column, descending) {
  const isMissing = (value) => value === undefined || value === null || value === "";
  const rank = (value) => (isMissing(value) ? 2 : Number(Number.isNaN(real(value))));
  const compare = (a, b) => {
    const [x, y] = [real(a), real(b)];
    return x !== undefined && y !== undefined
      ? x - y : String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  return runs.map((run) => [run, column.value(run)]).sort(([, a], [, b]) =>
    rank(a) - rank(b) || (rank(a) ? 0 : (descending ? -1 : 1) * compare(a, b))).map(([run]) => run);
}

// Returns [label, runs] of the groups by a column's value, in the order of the runs.
export function grouped(runs, column) {
  const groups = new Map();
  for (const run of runs) {
    const label = text(column, column.value(run)) || "none";
    groups.set(label, [...(groups.get(label) ?? []), run]);
  }
  return [...groups];
}

// Returns mean ± standard deviation of a column over runs; of texts the common one, or how many there are.
export function summarized(column, runs, numeric) {
  const values = runs.map(column.value).filter((value) => value !== undefined && value !== null && value !== "");
  if (!values.length || column.isTime) return "";
  if (!numeric || column.kind === "config") return new Set(values.map(String)).size === 1
    ? text(column, values[0]) : plural(new Set(values.map(String)).size, "value");
  const finite = values.map(real).filter(Number.isFinite);
  if (!finite.length) return "";
  const mean = finite.reduce((sum, value) => sum + value, 0) / finite.length;
  const format = column.format ?? ((value) => number(value, 4));
  if (finite.length < 2) return format(mean);
  const spread = Math.sqrt(finite.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (finite.length - 1));
  return spread <= 1e-12 * Math.abs(mean)
    ? format(mean) : `${format(mean)} ± ${column.format ? format(spread) : number(spread, 2)}`;
}

const MOST_COMPLETIONS = 30;
const WORDS = [...ENDED, "live", "pinned", "older:7d", "newer:24h"];

// Returns queries that begin with what is typed: its last term is completed to a name of a setting, a result or a fact,
// or to a value after a comparison. docs/queries.md describes the language, which the daemon reads.
export function completions(typed, runs) {
  const [, before = "", last] = /^(.*\s)?(\S*)$/s.exec(typed);
  if (!last) return [];
  const [, sign, name, test = "", begin] = /^(-?)(?:([^\s"=<>!:]+)([<>!]=|[:=<>]))?(.*)$/s.exec(last);
  const fields = (run) => [...run.settings, ...run.results, ["state", run.state],
    ...run.tags.map((tag) => ["tag", tag])];
  const isNamed = (field) => field === name || field.endsWith(`.${name}`);
  const values = () => runs.flatMap(fields).filter(([field]) => isNamed(field)).map(([, value]) => plain(value))
    .map((value) => (/[\s"|]/.test(value) ? `"${value.replaceAll('"', "")}"` : value));
  const names = () => [...WORDS, ...runs.flatMap(fields).map(([field]) => `${field}=`)];
  const options = name ? values() : names();
  const head = before + sign + (name ? name + test : "");
  const isNear = (item) => item !== begin && item.toLowerCase().includes(begin.toLowerCase());
  return [...new Set(options)].filter(isNear).slice(0, MOST_COMPLETIONS).map((item) => head + item);
}
