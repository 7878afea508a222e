// The evidence of an alert, in sections. A section of unknown shape is shown as JSON.

import { capital, displayName, displayValue } from "/static/alerts/format.js";
import { Chart } from "/static/charts/chart.js";
import { h, scrollable, table } from "/static/dom.js";
import { percent, span, number, when } from "/static/format.js";
import { stackList } from "/static/stacks.js";

const SECTIONS = {
  occurrences: ["Times that it came while the alert fired", (times, alert) =>
    recordTable(times.map(({ number, time, summary }) => ({ number, when: relativeTime(time, alert), summary })))],
  batches: ["Batches of such a step, and of the one before", (all) => recordTable(all.map(({ step, rank, ...of }) => ({
    step: of.before ? `${step}, before` : step, rank, samples: of.count,
    ...(of.samples ? {} : { batch: of.number, iteration: of.iteration, worker: of.worker }),
    which: of.samples?.map((one) => [one, of.names?.[one]].join("\u00a0").trim()).join(", ") ?? of.why })))],
  ranks_alone: ["Ranks that differ from the others", (ranks) => h("p", {}, ranks.join(", "))],
  repeated_samples: ["Samples that were there at several such steps", recordTable],
  exception: ["Exception", exceptionText],
  causes: ["Likely causes", causes],
  checkpoint: ["Last good checkpoint before the alert", facts],
  diagnosis: ["Where the time of the run went until then", (texts) => preformatted(texts.join("\n"), "Diagnosis")],
  changed: ["Changed before", (changed) => h("ul", {}, changed.map((line) => h("li", {}, line)))],
  phases: ["Phases, by their share of the time", recordTable],
  neighbours: ["Heaviest processes outside of the training", recordTable],
  hang: ["Places of the ranks",
    ({ places }) => facts(Object.fromEntries(Object.entries(places).map(([rank, place]) => [`rank ${rank}`, place])))],
  samples: ["Samples before the alert", sampleChart],
  stacks: ["Stacks", (ranks) => h("div", {}, stackList(ranks))],
  ranks: ["Last values of the ranks", rankValues],
  events: ["Events before the alert", events],
  xids: ["Xid errors", (xids, alert) =>
    recordTable(xids.map(({ gpu, xid, time }) => ({ when: relativeTime(time, alert), GPU: gpu, Xid: xid })))],
  console: ["Last lines that the command printed", (texts) => preformatted(texts.join("\n"), "Output")],
  processes: ["Processes", recordTable],
  host: ["Host", (host) => h("div.cards", {}, h("div.card", {}, facts(host)))],
  cgroups: ["Cgroups", (cgroups) => h("div.cards", {},
    Object.entries(cgroups).map(([path, values]) => h("section.card", {}, h("h3.mono", {}, path), facts(values))))],
  gpus: ["GPUs", gpus],
  missing: ["Missing evidence", (missing) => h("ul", {}, missing.map((line) => h("li", {}, line)))],
};

// Units of values whose name states none; those of the others are shown with each value.
const HEADS = { step: "Step", loss: "Loss", grad_norm: "Gradient norm", learning_rate: "Learning rate",
  last_push: "Last push", state: "State" };
const PHASE = "phase_seconds";

export function evidence(alert, signal) {
  const all = alert.evidence;
  const unknown = Object.keys(all)
    .filter((name) => !Object.hasOwn(SECTIONS, name) && all[name] !== null && typeof all[name] === "object");
  const parts = [...Object.keys(SECTIONS), ...unknown].filter((name) => Object.hasOwn(all, name) && !empty(all[name]));
  return parts.map((name) => {
    const [title, part] = Object.hasOwn(SECTIONS, name) ? SECTIONS[name] : [displayName(name), rawJson];
    return h("section", {}, h("h2", {}, title), renderPart(part, all[name], alert, signal));
  });
}

// Returns the evidence that consists of a single value.
export function scalarEvidence(alert) {
  return Object.entries(alert.evidence).filter(([name, value]) => !["addition", "conclusion"].includes(name) &&
    !Object.hasOwn(SECTIONS, name) && (value === null || typeof value !== "object"));
}

function renderPart(part, value, alert, signal) {
  try {
    return part(value, alert, signal);
  } catch {
    return rawJson(value);
  }
}

const empty = (value) => value === null || (typeof value === "object" && !Object.keys(value).length);

function rawJson(value) {
  return preformatted(JSON.stringify(value, null, 2), "As JSON");
}

// Content that may be wider than the page is focusable, so that it scrolls by keyboard too.
function preformatted(content, label) {
  return h("pre", { tabindex: 0, role: "region", "aria-label": label }, content);
}

function facts(values) {
  return h("dl.facts", {}, Object.entries(values)
    .map(([name, value]) => [h("dt", {}, displayName(name)), h("dd", {}, displayValue(name, value))]));
}

function causes(values) {
  const share = (ratio) => (ratio === undefined ? "" : ` It can explain ${percent(ratio)} of the lost time at most.`);
  return h("ol", {}, values.map(({ text, explains_ratio: ratio }) =>
    h("li", {}, `${capital(text)}.`, h("span.quiet", {}, share(ratio)))));
}

function events(values, alert) {
  return recordTable(values.map(({ time, kind, rank, step, fields }) => ({
    when: relativeTime(time, alert),
    event: kind.replaceAll("_", " "),
    rank,
    step,
    details: Object.entries(fields ?? {}).filter(([, value]) => value !== "" && value !== null)
      .map(([name, value]) => `${name} ${displayValue(name, value)}`).join(", "),
  })));
}

function relativeTime(time, alert) {
  const seconds = alert.started - time;
  if (Math.abs(seconds) <= 0.05) return "then";
  return `${span(Math.abs(seconds))} ${seconds > 0 ? "before" : "after"}`;
}

// Returns the traceback of an exception, which ends with its text.
export function exceptionText({ type, text, traceback }) {
  return preformatted(String(traceback || `${type}: ${text}`), "Traceback, the innermost call last");
}

// A table with one row per record; columns without any value are left out.
function recordTable(values) {
  const names = [...new Set(values.flatMap(Object.keys))].filter((name) =>
    values.some((item) => displayValue(name, item[name]) !== ""));
  const columnKind = (name) =>
    (values.some((item) => typeof item[name] === "string" && item[name]) ? "text" : "number");
  const columns = names.map((name) => [capital(displayName(name)), columnKind(name) === "text" ? "" : "number"]);
  const body = values.map((item) =>
    h("tr", {}, names.map((name) => h(`td.${columnKind(name)}`, {}, displayValue(name, item[name])))));
  return scrollable("Table", table(columns, body, "table.things"));
}

function gpus(values) {
  const card = ([gpu, { readings, processes, ranks: trained = [], clocks_kept_down_by: limits = [] }]) =>
    h("section.card", {}, h("h3", {}, `GPU ${gpu}`),
      trained.length ? h("p.quiet", {}, trained.join(", ")) : null,
      limits.length ? h("p.warn", {}, `Clocks limited by ${limits.join(", ")}`) : null,
      facts(readings), processes?.length ? recordTable(processes) : null);
  return h("div.cards", {}, Object.entries(values).map(card));
}

// The last samples as a chart and as a table.
function sampleChart({ key, rank, points }, alert, signal) {
  if (!points.length) return null;
  const chart = new Chart({ title: `${key} of rank ${rank}`, origin: points[0][1],
    load: async () => [{ label: "", index: 0, points }] }, signal);
  return h("div.samples", {}, chart.root, h("details", {}, h("summary", {}, "As a table"), samples(key, points)));
}

function samples(key, points) {
  const lines = points.map(([step, time, value]) =>
    h("tr", {}, h("td.number", {}, step), h("td", {}, when(time)), h("td.number", {}, number(value, 9))));
  const columns = [["Step", "number"], "Time", [key, "number"]];
  return table(columns, lines, "table", { "aria-label": `Samples of ${key}` });
}

// `values` are the values by name, by rank; a value may be an object of seconds by phase.
function rankValues(values, alert) {
  const own = alert.labels.rank;
  const ranks = Object.keys(values).sort((a, b) => Number(b === own) - Number(a === own) || Number(a) - Number(b));
  const flat = ranks.map((rank) => flatten(values[rank]));
  const names = [...new Set(flat.flatMap(Object.keys))];
  const isText = (name) => flat.every((item) => item[name] === undefined || name === "state");
  const columns = [["Rank", "number"], ...names.map((name) => [headOf(name), isText(name) ? "" : "number"])];
  const body = ranks.map((rank, index) => h(rank === own ? "tr.strong" : "tr", {},
    h("th.number", { scope: "row" }, rank),
    names.map((name) => h(isText(name) ? "td" : "td.number", {}, displayValue(name, flat[index][name])))));
  return scrollable("Last values of the ranks", table(columns, body, "table.things"));
}

// A phase's name ends with its unit, so that its value is shown as a duration.
function flatten(values) {
  return Object.fromEntries(Object.entries(values).flatMap(([name, value]) => {
    if (value === null || typeof value !== "object") return [[name, value]];
    return Object.entries(value)
      .map(([inner, item]) => [name === PHASE ? `${inner}_seconds phase` : `${name} ${inner}`, item]);
  }));
}

function headOf(name) {
  if (Object.hasOwn(HEADS, name)) return HEADS[name];
  if (name.endsWith("_seconds phase")) return `Time in ${name.slice(0, -"_seconds phase".length)}`;
  if (!/^[a-z_]+$/.test(name)) return name; // a key as the user wrote it
  return capital(displayName(name));
}
