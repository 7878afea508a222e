// A chart for each key, with a line for each run that has it; all have the same axis, window and smoothing.

import { ask, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { counted } from "/static/charts/lines.js";
import { h } from "/static/dom.js";

const COLORS = 8;

export class Charts {
  // `view` is { by, log, smooth, from, to }; `zoomed(from, to)` is told of a zoom, which all charts follow.
  constructor(view, zoomed, signal) {
    Object.assign(this, { view, zoomed, signal, runs: [], charts: new Map() });
    this.root = h("div.charts");
  }

  // Those of some keys, in their order; others go, and all are new when the runs are others.
  show(keys, runs) {
    const same = runs.length === this.runs.length && runs.every((run, place) => run === this.runs[place]);
    this.runs = [...runs];
    for (const key of [...this.charts.keys()]) if (!same || !keys.includes(key)) this.#drop(key);
    keys.forEach((key, place) => {
      const { root } = this.charts.get(key)?.chart ?? this.#add(key);
      if (this.root.children[place] !== root) this.root.insertBefore(root, this.root.children[place] ?? null);
    });
  }

  set(changes) {
    Object.assign(this.view, changes);
    for (const { chart } of this.charts.values()) chart.set(changes);
  }

  refresh() {
    for (const { chart } of this.charts.values()) chart.refresh();
  }

  #add(key) {
    const ending = new AbortController();
    const load = (asked) => lines(this.runs.filter((run) => run.sums.has(key)), key, asked);
    const zoomed = (from, to) => {
      this.set({ from, to });
      this.zoomed(from, to);
    };
    const chart = new Chart({ title: key, sync: "compare", load, zoomed, ...this.view }, AbortSignal.any([this.signal, ending.signal]));
    this.charts.set(key, { chart, ending });
    return chart;
  }

  #drop(key) {
    const { chart, ending } = this.charts.get(key);
    ending.abort();
    chart.root.remove();
    this.charts.delete(key);
  }
}

// The lines of a key: one a run, or one an attempt, which have the colour of their run.
async function lines(runs, key, { by, from, to, points, signal }) {
  const start = (run) => (by === "relative" ? run.document.started : 0);
  const zoomed = from !== undefined || to !== undefined;
  const groups = by === "relative" && zoomed ? runs.map((run) => [run]) : [runs];
  const asked = groups.filter((group) => group.length).map(async (group) => {
    const [low, high] = [from, to].map((one) => (one === undefined ? undefined : one + start(group[0])));
    const wanted = { run: group.map((run) => run.id), key, by: by === "step" ? "step" : "time", from: low, to: high, points };
    return (await ask(`series?${query(wanted)}`, { signal })).series;
  });
  const found = (await Promise.all(asked)).flat();
  return runs.flatMap((run) => {
    const own = found.filter((one) => one.run === run.id && one.points.length);
    return own.map((one, number) => ({
      label: own.length > 1 ? `${run.label}, attempt ${one.attempt}` : run.label,
      place: run.place + COLORS * number,
      points: counted(one).map(([step, time, ...rest]) => [step, time - start(run), ...rest]),
    }));
  });
}
