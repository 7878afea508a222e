// What `trackside benchmark` measured: charts of throughput over the load, and a table of each variant under each load.

import { Chart } from "/static/charts/chart.js";
import { getJson, query } from "/static/api.js";
import { h, setText, syncRows, ENDED, rerender, fold, scrollable, table } from "/static/dom.js";
import { number, plural, span } from "/static/format.js";

const KIND = "benchmark"; // Kind of the events.
const MAX_EVENTS = 1000;
const MOST_CHARTS = 24;
const LOADS = { batch: "batch size", length: "length", concurrency: "requests in flight" };

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
      const found = newest(events.filter(({ kind, fields }) => kind === KIND && fields.latency_seconds));
      this.root.hidden = !found.length;
      setText(this.note, `${plural(found.length, "combination")} of variant and load`);
      const charts = Object.keys(LOADS).flatMap((name) => throughputs(found, name)).slice(0, MOST_CHARTS);
      syncRows(this.charts, charts, (item) => item.title, (item) => this.#chart(item));
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

// Returns the charts of the throughput over one part of the load, one for each combination of its other parts; each
// variant is a line.
function throughputs(found, name) {
  const variants = [...new Set(found.map((item) => item.variant))];
  const loads = Object.keys(LOADS).filter((other) => other !== name);
  const others = (item) => loads.filter((other) => item[other]).map((other) => `${other}=${item[other]}`).join(" ");
  const groups = Map.groupBy(found.filter((item) => item[name] > 0 && Number.isFinite(item.throughput)), others);
  return [...groups].map(([rest, items]) => {
    const amounts = [...new Set(items.map((item) => item[name]))].sort((a, b) => a - b);
    const points = (label) => items.filter((item) => item.variant === label).map((item) => point(item, name));
    return {
      title: rest ? `${rest}: throughput over ${LOADS[name]}` : `Throughput over ${LOADS[name]}`,
      format: (value) => (Number.isFinite(value) ? `${number(value)} ${items[0].throughput_unit}/s` : ""),
      axis: { name: LOADS[name], splits: amounts.map(Math.log2), label: (x) => number(2 ** x) },
      lines: variants.map((label, index) => ({ label, index, points: points(label) }))
        .filter((line) => line.points.length),
    };
  }).filter(({ axis }) => axis.splits.length > 1);
}

// Returns a point as charts have it: [0, x, low, high, value].
function point({ throughput: value, throughput_interval: ends, ...item }, name) {
  return [0, Math.log2(item[name]), ends?.[0] ?? value, ends?.[1] ?? value, value];
}

function results(found) {
  const loads = found.map((item) => item.load);
  const sorted = found.toSorted((one, other) => loads.indexOf(one.load) - loads.indexOf(other.load));
  const columns = ["Load", "Variant", "Median latency", "p99", "Throughput", "Against the first variant"];
  const rows = sorted.map((item) =>
    h("tr", {},
      h("td", {}, item.load || "-"),
      h("th.name", { scope: "row" }, item.variant),
      h("td", {}, `${latency(item.latency_seconds.p50)}, ${plural(item.samples, "sample")}`),
      h("td", {}, latency(item.latency_seconds.p99)),
      h("td", {}, `${number(item.throughput)} ${item.throughput_unit}/s`),
      h("td", {}, effect(item.times_faster?.latency_seconds))));
  return table(columns, rows);
}

// Returns a percentile with its interval, or why it has none.
function latency(found) {
  const ends = [found?.low, found?.high];
  if (!Number.isFinite(found?.value)) return found?.reason || "-";
  const range = ends.every(Number.isFinite) ? ` (${ends.map((end) => span(end)).join(" to ")})` : "";
  return `${span(found.value)}${range}`;
}

function effect(faster) {
  if (!Number.isFinite(faster?.low) || !Number.isFinite(faster?.high)) return "-";
  return `${number(faster.low, 3)} to ${number(faster.high, 3)} times as fast`;
}
