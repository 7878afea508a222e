// What `trackside benchmark` measured: charts of latency and throughput, and a table of each variant under each load.

import { benchmarkCharts } from "/static/charts/benchmark_charts.js";
import { Chart } from "/static/charts/chart.js";
import { getJson, query } from "/static/api.js";
import { h, setText, syncRows, ENDED, rerender, fold, scrollable, table } from "/static/dom.js";
import { number, plural, span } from "/static/format.js";

const KIND = "benchmark"; // Kind of the events.
const MAX_EVENTS = 1000;

export class Benchmarks {
  constructor(/** @type {Run} */ run, signal) {
    this.id = run.id;
    this.signal = signal;
    this.note = h("span.quiet");
    this.charts = h("div.charts");
    this.body = scrollable("Benchmarks");
    this.root = fold("Benchmarks", { hidden: true }, [this.note], this.charts, this.body);
  }

  update(/** @type {Run} */ run) {
    const ended = ENDED.has(run.state);
    if (run.tags.includes(KIND) && !this.complete) this.#load(ended);
  }

  async #load(ended) {
    try {
      const { events } = await getJson(`events?${query({ run: this.id, limit: MAX_EVENTS })}`, this.signal);
      const found = newest(events.filter(({ kind, fields }) => kind === KIND && Array.isArray(fields.curve)));
      this.root.hidden = !found.length;
      setText(this.note, `${found.length} combinations of variant and load`);
      syncRows(this.charts, benchmarkCharts(found), (item) => item.title, (item) => this.#chart(item));
      rerender(this.body, JSON.stringify(found), () => results(found));
      this.complete = ended;
    } catch {
      // The next update tries again.
    }
  }

  #chart({ title, lines, ...settings }) {
    const chart = new Chart({ title, ...settings, by: "relative", load: async () => lines }, this.signal);
    chart.root.update = (item) => {
      lines = item.lines;
      chart.refresh();
    };
    return chart.root;
  }
}
// Returns the fields of the newest event of each variant and load, in the order in which they were measured.
function newest(events) {
  const found = new Map();
  for (const { fields } of events) found.set(`${fields.load}\n${fields.variant}`, fields);
  return [...found.values()];
}

function results(found) {
  const loads = found.map((item) => item.load);
  const sorted = found.toSorted((one, other) => loads.indexOf(one.load) - loads.indexOf(other.load));
  const columns = ["Load", "Variant", "Latency: median, p5 to p95", "Throughput", "Against the first variant"];
  const rows = sorted.map((item) =>
    h("tr", {},
      h("td", {}, item.load || "-"),
      h("th.name", { scope: "row" }, item.variant),
      h("td", {}, latency(item)),
      h("td", {}, `${number(item.throughput)} ${item.throughput_unit}/s`),
      h("td", {}, effect(item.times_faster?.latency_seconds))));
  return table(columns, rows);
}

const at = (item, share) => item.curve.find(([place]) => place === share)?.[1];

function latency(item) {
  const ends = [at(item, 0.05), at(item, 0.95)].map(span);
  const range = ends.includes("") ? "" : ` (${ends[0]} to ${ends[1]})`;
  return `${span(item.latency_seconds?.p50?.value) || "-"}${range}, ${plural(item.samples, "sample")}`;
}

function effect(faster) {
  if (!Number.isFinite(faster?.low) || !Number.isFinite(faster?.high)) return "-";
  return `${number(faster.low, 3)} to ${number(faster.high, 3)} times as fast`;
}
