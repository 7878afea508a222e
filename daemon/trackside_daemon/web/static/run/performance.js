// How fast a run is over time, and which rank makes the others wait.

import { getJson, query, runPath } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { zoomReset } from "/static/charts/interaction.js";
import { h, setText, syncRows, badge, ENDED, rerender, fold } from "/static/dom.js";
import { bytes, number, percent, short, span } from "/static/format.js";
import { ledger } from "/static/run/diagnosis.js";
import { latestRatio, RankMap } from "/static/run/rank_map.js";
import { scrollTable } from "/static/run/tables.js";

const RELOAD_MS = 10_000;
const POINTS = 120;
const HEADS = [["Rank"], ["State"], ["Step", "number"], ["Own time a step", "number"], ["× median", "number"],
  ["Wait a step", "number"], ["GPU"], ["Utilization", "number"], ["GPU memory", "number"]];

export class Performance {
  constructor(/** @type {Run} */ run, signal) {
    this.id = run.id;
    this.run = run;
    this.signal = signal;
    this.charts = CHARTS.map((item) => this.#chart(item, signal));
    this.reset = zoomReset(() => this.#zoom());
    this.note = h("span.quiet");
    this.map = new RankMap();
    this.body = h("tbody");
    this.table = h("section", { hidden: true }, h("h3", {}, "Ranks now"), scrollTable("Each rank", HEADS, this.body));
    this.ledger = h("section", { hidden: true }); // Stands beside the phases.
    this.empty = h("p.quiet", { hidden: true }, "Nothing yet. Steps are timed by themselves; name phases with ",
      "run.phase(\"forward\") and wrap the loader in run.data(loader) to see where the time goes.");
    const grid = h("div.charts", {}, this.charts.map((item) => item.root));
    this.root = fold("Performance", {}, [this.note, this.reset.button], this.empty, grid, this.map.root, this.table);
  }

  // Called with the run's document.
  update(/** @type {Run} */ run) {
    this.run = run;
    const ended = ENDED.has(run.state);
    setText(this.note, [run.goodput === undefined ? "" : `goodput ${percent(run.goodput)}`,
      run.mfu === undefined ? "" : `MFU ${percent(run.mfu)}`].filter(Boolean).join(" · "));
    if (!this.loadedAt || !ended || !this.ended) for (const chart of this.charts) chart.refresh();
    this.ended = ended;
    if (this.root.checkVisibility()) this.#load().catch(() => {}); // The frame reports the outage.
  }

  // Called with each overview.
  updateLive(overview) {
    this.gpus = overview.gpus;
    this.live = overview.runs.find((item) => item.id === this.id);
  }

  // Called with the diagnosis, which has the ledger.
  showLedger(found) {
    this.ledger.hidden = !(found.wall_seconds > 0);
    if (!this.ledger.hidden)
      rerender(this.ledger, JSON.stringify(found.ledger), () => [h("h2", {}, "Where the time went"), ledger(found)]);
  }

  // All charts share one answer, and one request at a time.
  async #load() {
    const isRecent = performance.now() - this.loadedAt < (this.ended ? Infinity : RELOAD_MS);
    if (!isRecent && !this.loading) {
      this.loading = this.#fetch();
      this.loading.finally(() => { this.loading = undefined; }).catch(() => {});
    }
    await this.loading;
    return this.found;
  }

  async #fetch() {
    const wasEnded = this.ended;
    const [found, { runs }] = await Promise.all([
      getJson(`${runPath(this.id)}/performance?${query({ points: POINTS })}`, this.signal),
      getJson(`runs?${query({ name: this.id, limit: 10 })}`, this.signal),
    ]);
    if (wasEnded === this.ended) this.loadedAt = performance.now();
    this.found = found;
    this.map.update(found);
    this.#ranks(found, runs.find((item) => item.id === this.id)?.ranks ?? []);
    for (const [index, { lines }] of CHARTS.entries())
      this.charts[index].root.hidden = !lines(found).some((line) => line.values.some((value) => value !== null));
    this.empty.hidden = this.charts.some((chart) => !chart.root.hidden);
  }

  #zoom(from, to) {
    for (const chart of this.charts) chart.set({ from, to });
    this.reset.update(from, to);
  }

  #ranks(found, states) {
    const byRank = new Map(states.map((item) => [item.rank, { ...item }]));
    for (const row of found.ranks) byRank.set(row.rank, { ...byRank.get(row.rank), rank: row.rank,
      own: row.own.findLast(Number.isFinite), wait: row.wait.findLast(Number.isFinite), ratio: latestRatio(row) });
    for (const gpu of this.gpus ?? []) for (const { run, rank } of gpu.ranks) if (run === this.id && byRank.has(rank))
      byRank.get(rank).gpu = gpu;
    const rows = [...byRank.values()].sort((a, b) => (b.ratio ?? 0) - (a.ratio ?? 0) || a.rank - b.rank);
    this.table.hidden = rows.length < 2;
    const marked = rows.map((item) => ({ ...item, slow: item.ratio >= found.straggler_ratio }));
    syncRows(this.body, marked, (item) => item.rank, (item) => rankRow(item));
  }

  #chart({ title, lines, ...settings }, signal) {
    const load = async ({ from, to }) => {
      const found = await this.#load();
      return lines(found).map(({ label, values }, index) =>
        ({ label, index, points: toPoints(found.times, values, from, to) }));
    };
    return new Chart({ title, by: "time", load, onZoom: (from, to) => this.#zoom(from, to), sync: "performance",
      range: [0], ...settings }, signal);
  }
}

const seconds = (value) => span(value);
const CHARTS = [
  { title: "Step time", format: seconds,
    lines: ({ step }) => [{ label: "p50", values: step.p50 }, { label: "p99", values: step.p99 }] },
  { title: "Tokens per second", format: (value) => short(value),
    lines: (found) => [{ label: "tokens/s", values: found.tokens_per_second }] },
  { title: "Samples per second", format: (value) => short(value),
    lines: (found) => [{ label: "samples/s", values: found.samples_per_second }] },
  { title: "Phases of a step", format: seconds, stacked: true,
    lines: ({ phases }) => Object.entries(phases).map(([label, values]) => ({ label, values })) },
  { title: "Data wait", format: percent,
    lines: ({ phases }) => ("data" in phases ? [{ label: "share of the step", values: shares(phases, "data") }] : []) },
  { title: "MFU", format: percent, lines: ({ mfu }) => (mfu.length ? [{ label: "MFU", values: mfu }] : []) },
];

function shares(phases, name) {
  const all = Object.values(phases);
  return phases[name].map((value, index) =>
    (value === null ? null : value / all.reduce((sum, values) => sum + (values[index] ?? 0), 0)));
}

function toPoints(times, values, from = -Infinity, to = Infinity) {
  return times.flatMap((time, index) =>
    (values[index] === null || time < from || time > to ? [] : [[0, time, values[index]]]));
}

function rankRow(first) {
  const [state, step, own, ratio, wait, gpu, utilization, memory] = [h("td"),
    ...Array.from({ length: 4 }, () => h("td.number")), h("td"), h("td.number"), h("td.number")];
  const word = badge();
  state.append(word);
  const row = h("tr", {}, h("th", { scope: "row" }, String(first.rank)), state, step, own, ratio, wait, gpu,
    utilization, memory);
  row.update = (item) => {
    word.update(item.state);
    row.classList.toggle("slow", item.slow);
    const device = item.gpu;
    const texts = [[step, number(item.step)], [own, span(item.own)],
      [ratio, number(item.ratio, 3)], [wait, span(item.wait)], [gpu, device ? `GPU ${device.gpu}` : ""],
      [utilization, percent(device?.utilization_ratio)], [memory, bytes(device?.memory_used_bytes)]];
    for (const [cell, text] of texts) setText(cell, text);
  };
  return row;
}
