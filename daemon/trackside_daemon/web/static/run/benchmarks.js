// What `trackside benchmark` measured: the distribution of latency and the throughput of each variant under each load.

import { getJson, query } from "/static/api.js";
import { h, setText, svg } from "/static/dom.js";
import { ENDED, rerender } from "/static/components.js";

const KIND = "benchmark"; // Kind of the events.
const MAX_EVENTS = 1000;

export class Benchmarks {
  constructor(run, signal) {
    Object.assign(this, { id: run.id, signal });
    this.note = h("span.quiet");
    this.body = h("div.scroll");
    this.root = h("details.run-section", { hidden: true, open: true }, h("summary", {}, h("h2", {}, "Benchmarks"), this.note), this.body);
  }

  update(run) {
    const ended = ENDED.has(run.state);
    if (run.tags.includes(KIND) && !this.complete) this.#load(ended);
  }

  async #load(ended) {
    try {
      const { events } = await getJson(`events?${query({ run: this.id, limit: MAX_EVENTS })}`, { signal: this.signal });
      const found = events.filter(({ kind, fields }) => kind === KIND && Array.isArray(fields.curve)).map(({ fields }) => fields);
      this.root.hidden = !found.length;
      setText(this.note, `${found.length} combinations of variant and load`);
      rerender(this.body, JSON.stringify(found), () => table(found));
      this.complete = ended;
    } catch {
      // The next update tries again.
    }
  }
}

function table(found) {
  const loads = found.map((item) => item.load);
  const sorted = found.toSorted((one, other) => loads.indexOf(one.load) - loads.indexOf(other.load));
  const longest = ({ load }) => Math.max(...found.filter((item) => item.load === load).map((item) => at(item, 0.95) ?? 0)) || 1;
  const most = Math.max(...found.map((item) => item.throughput ?? 0)) || 1;
  const names = ["Load", "Variant", "Latency: median, p5 to p95", "Throughput", "Against the first variant"];
  const head = h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)));
  const rows = sorted.map((item) =>
    h(
      "tr",
      {},
      h("td", {}, item.load || "-"),
      h("th.name", { scope: "row" }, item.variant),
      h("td", {}, bar([part(at(item, 0.05), at(item, 0.95), longest(item), "faint"), part(at(item, 0.25), at(item, 0.75), longest(item), "")]), latency(item)),
      h("td", {}, bar([part(0, item.throughput, most, "")]), `${digits(item.throughput)} ${item.throughput_unit}/s`),
      h("td", {}, effect(item.times_faster?.latency_seconds)),
    ));
  return h("table.benchmarks", {}, h("thead", {}, head), h("tbody", {}, rows));
}

const at = (item, share) => item.curve.find(([place]) => place === share)?.[1];
const digits = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))) : "-");

function latency(item) {
  const ends = [at(item, 0.05), at(item, 0.95)].map((value) => digits(value * 1e3));
  const range = ends.includes("-") ? "" : ` (${ends[0]} to ${ends[1]})`;
  return `${digits(item.latency_seconds?.p50?.value * 1e3)}${range} ms, ${item.samples} samples`;
}

function effect(faster) {
  if (!Number.isFinite(faster?.low) || !Number.isFinite(faster?.high)) return "-";
  return `${digits(faster.low)} to ${digits(faster.high)} times as fast`;
}

function part(begin, end, whole, kind) {
  if (!Number.isFinite(begin) || !Number.isFinite(end)) return "";
  return svg("rect", { class: kind, x: (100 * begin) / whole, width: Math.max(0.4, (100 * (end - begin)) / whole), height: 10 });
}

function bar(parts) {
  return svg("svg.span-bar", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, parts);
}
