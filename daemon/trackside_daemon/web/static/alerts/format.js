// Formatting of alerts, their values and times.

import { h } from "/static/dom.js";
import { labels } from "/static/picker.js";
import { ago, bytes, number, percent, real, runAddress, span, when } from "/static/format.js";

const TIME_FIELDS = new Set(["last_push", "since", "recovered", "accepted"]);
const TITLES = {
  since: "trouble since",
  pid: "PID",
  cpus: "CPUs",
  cpu_seconds: "CPU time",
  resident_bytes: "memory",
  read_bytes_per_second: "reads",
  written_bytes_per_second: "writes",
  io_bytes_per_second: "reads and writes",
  step_seconds: "step duration",
};
/** @type {[RegExp, (value: number) => string][]} */
const UNITS = [
  [/_bytes_per_second$/, (value) => `${bytes(value)}/s`],
  [/_bytes$/, bytes],
  [/_seconds$/, span],
  [/_hertz$/, (value) => `${number(value / 1e6, 4)} MHz`],
  [/_celsius$/, (value) => `${number(value, 3)} °C`],
  [/_watts$/, (value) => `${number(value, 4)} W`],
  [/_ratio$/, (value) => percent(value)],
];

export function runLink(alert) {
  return alert.run ? h("a", { href: runAddress(alert.run) }, alert.label || alert.name || alert.run) : null;
}

// Returns alerts with the labels of their runs, which tell runs of the same name apart.
export function labelled(alerts) {
  const runs = [...new Map(alerts.filter(({ run }) => run).map(({ run: id, name }) => [id, { id, name: name || id }]))
    .values()];
  const names = new Map(labels(runs).map((label, index) => [runs[index].id, label]));
  return alerts.map((alert) => ({ ...alert, label: names.get(alert.run) }));
}

// Formats a time, and how long ago it was if the daemon's clock is known.
export function since(seconds, now) {
  const age = ago(seconds, now);
  return age ? `${when(seconds)}, ${age}` : when(seconds);
}

export function state(alert) {
  if (alert.ended !== null) return `Ended after ${span(Math.max(0, alert.ended - alert.started))}`;
  return alert.silenced_until ? `Silenced until ${when(alert.silenced_until)}` : "Firing";
}

// Returns true when an alert matches the patterns of a silence, by the daemon's rules.
export function matchesSilence(labels, alert) {
  const values = { ...alert.labels, alert: alert.alert };
  return Object.entries(labels)
    .every(([name, pattern]) => Object.hasOwn(values, name) && expression(pattern).test(values[name]));
}

export function expression(pattern) {
  const escaped = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&");
  return new RegExp(`^${escaped.replaceAll("*", ".*").replaceAll("?", ".")}$`, "s");
}

// Returns the labels of a silence as name=pattern.
export function silenceLabels(labels) {
  const chips = Object.entries(labels).map(([name, pattern]) => h("code.chip", {}, `${name}=${pattern}`));
  return chips.length ? chips : "All alerts";
}

export const capital = (name) => name[0].toUpperCase() + name.slice(1);

// Returns the name of a value without its unit.
export function displayName(name) {
  const [base, ...rest] = name.split(" ");
  const plain = Object.hasOwn(TITLES, base)
    ? TITLES[base]
    : base.replace(/_(bytes_per_second|bytes|seconds|hertz|celsius|watts|ratio|total)$/, "").replaceAll("_", " ");
  return [plain, ...rest].join(" ");
}

// Formats a value of the evidence in the unit that its name states.
export function displayValue(name, value) {
  if (value === null || value === undefined) return "";
  const size = real(value);
  if (size === undefined) return typeof value === "object" ? JSON.stringify(value) : String(value);
  if (!Number.isFinite(size)) return number(value);
  if (TIME_FIELDS.has(name)) return when(size);
  const base = name.split(" ")[0];
  const unit = UNITS.find(([end]) => end.test(base));
  return unit ? unit[1](size) : number(size);
}
