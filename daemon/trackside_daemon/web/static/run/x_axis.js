// The horizontal axis of a run's charts: steps, time, or the tokens, samples or values of a key at each step.

import { oneOf } from "/static/address.js";
import { getSeries } from "/static/api.js";
import { firstIndexSince } from "/static/charts/lines.js";
import { h } from "/static/dom.js";

const POINTS = 2000;
const RELOAD_MS = 10_000;
const AMOUNTS = ["tokens", "samples"]; // Amounts of each step, which the axis sums up.
const NAMES = { step: "Step", time: "Time", relative: "Time since start", tokens: "Tokens", samples: "Samples" };
const KEY = "key:"; // Prefix of an axis that is a key.

// Returns a valid axis: a name, or a key with its prefix.
export function axisOf(text) {
  return text?.startsWith(KEY) ? text : oneOf(NAMES, text, "step");
}

// Returns what stands below a chart.
export function axisTitle(by) {
  return by.startsWith(KEY) ? by.slice(KEY.length) : NAMES[by].toLowerCase();
}

// Returns a select { root, update(run) } with the axes that a run has.
export function axisSelect(selection, onChange) {
  const list = h("select", { onchange: () => onChange(list.value) });
  const root = h("label", {}, "X axis", list);
  let shown = "";
  const update = (run) => {
    const keys = [...new Set(run.metrics.map((item) => item.key))];
    const amounts = AMOUNTS.filter((name) => keys.includes(name));
    const text = keys.join("\n");
    if (text === shown && list.options.length) return;
    shown = text;
    const option = (value, name) => h("option", { value, selected: value === selection.by }, name);
    const others = keys.filter((key) => !AMOUNTS.includes(key)).map((key) => option(KEY + key, key));
    const group = h("optgroup", { label: "A key" }, others);
    list.replaceChildren(...["step", "time", "relative", ...amounts].map((by) => option(by, NAMES[by])),
      others.length ? group : "");
    list.value = selection.by;
  };
  return { root, update };
}

// The position of each step on an axis of tokens, samples or a key, from the run's lowest rank.
export class AxisTable {
  constructor(/** @type {Run} */ run, signal) {
    this.id = run.id;
    this.signal = signal;
  }

  // Loads the table of an axis; it stays for RELOAD_MS.
  async load(by, run) {
    if (this.by === by && performance.now() - this.loadedAt < RELOAD_MS) return this.loading;
    this.by = by;
    this.loadedAt = performance.now();
    this.loading = this.#load(by, run);
    return this.loading;
  }

  async #load(by, run) {
    const key = by.startsWith(KEY) ? by.slice(KEY.length) : by;
    const series = await getSeries({ run: this.id, key, points: POINTS, mean: true }, this.signal);
    const ranks = new Set(run.metrics.filter((item) => item.key === key).map((item) => item.rank)).size || 1;
    let table = [];
    for (const item of series) table = joined(table, by.startsWith(KEY) ? values(item) : sums(item, ranks));
    this.table = table;
  }

  // Returns points with their place on the axis in place of the step, which follows as the eighth element.
  place(points) {
    return points.flatMap((point) => {
      const x = interpolate(this.table, point[0]);
      const [, time, min, max, last, nonfinite = 0, mean = last] = point;
      return x === undefined ? [] : [[x, time, min, max, last, nonfinite, mean, point[0]]];
    });
  }

  // Returns the steps of a window of the axis.
  steps(from, to) {
    const inside = this.table.filter(([, x]) => (from === undefined || x >= from) && (to === undefined || x <= to));
    return inside.length ? [Math.floor(inside[0][0]) - 1, Math.ceil(inside.at(-1)[0]) + 1] : [0, 0];
  }
}

const values = ({ points, means }) =>
  points.map((point, index) => [point[0], means?.[index] ?? point[4]]).filter(([, value]) => Number.isFinite(value));

// Each point stands for the same number of samples.
function sums({ points, means, samples }, ranks) {
  const each = samples / Math.max(1, points.length);
  let total = 0;
  return points.map((point, index) => {
    const mean = means?.[index] ?? point[4];
    total += Number.isFinite(mean) ? mean * each * ranks : 0;
    return [point[0], total];
  });
}

// A later attempt continues at the place of its first step.
function joined(before, next) {
  if (!before.length || !next.length) return [...before, ...next];
  const base = interpolate(before, next[0][0]) ?? 0;
  const shift = next[0][1] < base ? base : 0;
  return [...before.filter(([step]) => step < next[0][0]), ...next.map(([step, x]) => [step, x + shift])];
}

function interpolate(table, step) {
  if (!table?.length) return undefined;
  const high = Math.min(table.length - 1, Math.max(1, firstIndexSince(table, step, ([at]) => at)));
  const [[first, x], [last, next]] = [table[Math.max(0, high - 1)], table[high]];
  if (last === first) return x;
  return x + ((next - x) * Math.min(1, Math.max(0, step - first) / (last - first)));
}
