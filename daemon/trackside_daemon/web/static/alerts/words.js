// How alerts, their values and their times are told, on all pages about them.

import { h } from "/static/dom.js";
import { ago, bytes, number, percent, real, runAddress, span, when } from "/static/words.js";

const MOMENTS = new Set(["last_push", "since"]);
const TITLES = {
  since: "trouble since",
  pid: "PID",
  cpus: "CPUs",
  cpu_seconds: "CPU time",
  resident_bytes: "memory",
  read_bytes_per_second: "reads",
  written_bytes_per_second: "writes",
  step_seconds: "step duration",
};
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
  return alert.run ? h("a", { href: runAddress(alert.run) }, alert.name || alert.run) : null;
}

// When, and how long ago as of the daemon's clock, if that is known.
export function since(seconds, now) {
  const before = ago(seconds, now);
  return before ? `${when(seconds)}, ${before}` : when(seconds);
}

export function state(alert) {
  if (alert.ended !== null) return `Ended after ${span(Math.max(0, alert.ended - alert.started))}`;
  return alert.silenced_until ? `Silenced until ${when(alert.silenced_until)}` : "Firing";
}

// A pattern of a silence, as the daemon reads it.
export function fits(labels, alert) {
  const about = { ...alert.labels, alert: alert.alert };
  return Object.entries(labels).every(([name, pattern]) => Object.hasOwn(about, name) && expression(pattern).test(about[name]));
}

function expression(pattern) {
  const escaped = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&");
  return new RegExp(`^${escaped.replaceAll("*", ".*").replaceAll("?", ".")}$`, "s");
}

// The labels of a silence, each as name=pattern.
export function matchers(labels) {
  const found = Object.entries(labels).map(([name, pattern]) => h("code.chip", {}, `${name}=${pattern}`));
  return found.length ? found : "All alerts";
}

// The name of a value, without its unit, which the value has.
export function named(name) {
  const [base, ...rest] = name.split(" ");
  const plain = Object.hasOwn(TITLES, base) ? TITLES[base] : base.replace(/_(bytes_per_second|bytes|seconds|hertz|celsius|watts|ratio|total)$/, "").replaceAll("_", " ");
  return [plain, ...rest].join(" ");
}

// A value of evidence, in the unit that its name has.
export function valued(name, value) {
  if (value === null || value === undefined) return "";
  const size = real(value);
  if (size === undefined) return typeof value === "object" ? JSON.stringify(value) : String(value);
  if (!Number.isFinite(size)) return number(value);
  if (MOMENTS.has(name)) return when(size);
  const base = name.split(" ")[0];
  const unit = UNITS.find(([end]) => end.test(base));
  return unit ? unit[1](size) : number(size);
}
