// How fast a run is over time, and which rank makes the others wait.

import { getJson, query, runPath } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { zoomReset } from "/static/charts/interaction.js";
import { h, liveRow, setText, syncRows, badge, choices, ENDED, rerender, fold } from "/static/dom.js";
import { bytes, number, percent, short, span, when } from "/static/format.js";
import { ledger } from "/static/run/diagnosis.js";
import { drawMap } from "/static/run/layers.js";
import { phaseColor, scrollTable } from "/static/run/tables.js";

const RELOAD_MS = 10_000;
const POINTS = 120;
const HEADS = [["Rank"], ["State"], ["Step", "number"], ["Own time a step", "number"], ["× median", "number"],
  ["× its past", "number"], ["Wait a step", "number"], ["GPU"], ["Utilization", "number"], ["GPU memory", "number"]];

const COLLECTIVES = [["Communicator"], ["Operation"], ["Size"], ["Ranks", "number"], ["GB/s", "number"],
  ["Of before", "number"], ["Of peers", "number"], ["Time", "number"], ["Waits for"]];
const MODES = { own: "Own time", wait: "Wait for others" };

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
    this.operations = h("tbody");
    this.collectives = h("section", { hidden: true }, h("h3", {}, "Collectives"),
      h("p.quiet", {}, "The bandwidth is that of the rank that waits least, as the links have it; the slowest 50."),
      scrollTable("Each operation of NCCL", COLLECTIVES, this.operations));
    this.ledger = h("section", { hidden: true }); // Stands beside the phases.
    this.empty = h("p.quiet", { hidden: true }, "Nothing yet. Steps are timed by themselves; name phases with ",
      "run.phase(\"forward\") and wrap the loader in run.data(loader) to see where the time goes.");
    const grid = h("div.charts", {}, this.charts.map((item) => item.root));
    this.root = fold("Performance", {}, [this.note, this.reset.button], this.empty, grid, this.map.root, this.table,
      this.collectives);
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

  // The marks of the run's charts.
  set({ marks }) {
    for (const chart of this.charts) chart.set({ marks });
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
    this.collectives.hidden = !found.collectives.length;
    syncRows(this.operations, found.collectives, ({ communicator, operation, size, ranks }) =>
      [communicator, operation, size, ranks].join(), collectiveRow);
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
      own: row.own.findLast(Number.isFinite), wait: row.wait.findLast(Number.isFinite), ratio: latestRatio(row),
      past: row.past?.findLast(Number.isFinite) });
    for (const gpu of this.gpus ?? []) for (const { run, rank } of gpu.ranks) if (run === this.id && byRank.has(rank))
      byRank.get(rank).gpu = gpu;
    const rows = [...byRank.values()].sort((a, b) => (b.ratio ?? 0) - (a.ratio ?? 0) || a.rank - b.rank);
    this.table.hidden = rows.length < 2;
    const marked = rows.map((item) => ({ ...item, slow: item.ratio >= found.straggler_ratio }));
    syncRows(this.body, marked, (item) => item.rank, rankRow);
  }

  #chart({ title, lines, ...settings }, signal) {
    const load = async ({ from, to }) => {
      const found = await this.#load();
      return lines(found).map(({ label, values, color }, index) =>
        ({ label, index: color ?? index, points: toPoints(found.times, values, from, to) }));
    };
    return new Chart({ title, by: "time", load, onZoom: (from, to) => this.#zoom(from, to), sync: "performance",
      range: [0], ...settings }, signal);
  }
}

const seconds = (value) => span(value);
const CHARTS = [
  { title: "Step time", format: seconds,
    lines: ({ step }) => [{ label: "p50", values: step.p50 }, { label: "p99", values: step.p99 }] },
  ...["Tokens", "Samples"].map((title) => ({ title: `${title} per second`, format: (value) => short(value),
    lines: (found) => [{ label: `${title.toLowerCase()}/s`, values: found[`${title.toLowerCase()}_per_second`] }] })),
  { title: "Phases of a step", format: seconds, stacked: true,
    lines: ({ phases }) => Object.entries(phases).map(([label, values], index) =>
      ({ label, values, color: phaseColor(label, index) })) },
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

function rankRow() {
  const state = badge();
  return liveRow(cellsOf(HEADS), ({ gpu, ...item }, row) => {
    state.update(item.state);
    row.classList.toggle("slow", item.slow);
    return [item.rank, state, number(item.step), span(item.own), number(item.ratio, 3), number(item.past, 3),
      span(item.wait), gpu ? `GPU ${gpu.gpu}` : "", percent(gpu?.utilization_ratio), bytes(gpu?.memory_used_bytes)];
  });
}

// Returns the kinds of a row's cells, the first of which is its heading.
const cellsOf = (heads) => heads.map(([, kind], index) => [index ? "td" : "th", kind].filter(Boolean).join("."));

function collectiveRow() {
  return liveRow(cellsOf(COLLECTIVES), (item) => [item.communicator, item.operation,
    item.size, item.ranks, number(item.bandwidth, 3), percent(item.bandwidth / item.usual),
    percent(item.bandwidth / item.peers), span(item.seconds), item.waits_for]);
}

const nameOf = (row) => `rank ${row.rank}`;

// A map of ranks over time: one row a rank, one column a part of the time. A straggler is a bright row.
class RankMap {
  constructor() {
    this.canvas = h("canvas.run-map", { tabindex: 0, role: "img", onmousemove: (event) => this.#hover(event),
      onmouseleave: () => this.#describe(), onkeydown: (event) => this.#key(event) });
    this.text = h("p.quiet", { role: "status" });
    this.mode = h("select", { "aria-label": "What the map shows", onchange: () => {
      this.#draw();
      this.#describe();
    } }, choices(MODES, "own"));
    this.root = h("figure.card.rank-figure", { hidden: true },
      h("div.tools", {}, h("h3", {}, "Ranks over time"), this.mode), h("div", {}, this.canvas), this.text);
    new ResizeObserver(() => this.rows && this.#draw()).observe(this.root);
  }

  // Called with the performance of the run.
  update({ times, ranks, straggler_ratio: slow }) {
    this.root.hidden = ranks.length < 2;
    if (this.root.hidden) return;
    this.times = times;
    this.rows = ranks;
    this.slow = slow;
    this.#draw();
    if (!this.canvas.matches(":hover, :focus")) this.#describe();
  }

  #draw() {
    const own = this.mode.value === "own";
    const values = this.rows.map((row) => (own ? row.ratio : row.wait));
    this.drawn = drawMap(this.canvas, { layers: this.rows.map(nameOf), at: this.times, values },
      { label: when, linear: true, range: own ? [1, this.slow] : [0, 0] });
  }

  #describe() {
    const ratios = this.rows.map((row) => ({ row, rank: row.rank, ratio: latestRatio(row) }));
    const worst = ratios.filter((item) => item.ratio >= this.slow).sort((a, b) => b.ratio - a.ratio)[0];
    const since = worst && when(this.times[slowSince(worst.row, this.slow)]);
    const text = worst
      ? `Rank ${worst.rank} takes ${number(worst.ratio, 3)} times the own time of the median rank, since ${since}.`
      : "No rank is slower than the others by its own time.";
    setText(this.text, text);
    this.canvas.setAttribute("aria-label",
      `${MODES[this.mode.value]} of ${this.rows.length} ranks over time. ${text} Arrow keys move over the cells.`);
  }

  #hover(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const layer = this.drawn.layerAt(event.clientY - top);
    this.#cell(this.drawn.columnAt(event.clientX - left) ?? 0, this.rows.findIndex((row) => nameOf(row) === layer));
  }

  #key(event) {
    const [right, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ??
      [];
    if (right === undefined) return;
    event.preventDefault();
    const [column, line] = this.at ?? [this.times.length - 1 - right, -down];
    this.#cell(column + right, line + down);
  }

  #cell(column, line) {
    this.at = [Math.min(this.times.length - 1, Math.max(0, column)), Math.min(this.rows.length - 1, Math.max(0, line))];
    const row = this.rows[this.at[1]];
    const [own, wait] = [row.own[this.at[0]], row.wait[this.at[0]]];
    const values = own === null ? "no steps" : `own time ${span(own)} a step, wait ${span(wait)}`;
    setText(this.text, `Rank ${row.rank}, until ${when(this.times[this.at[0]])}: ${values}`);
  }
}

// Returns the latest ratio of a rank's own time to that of the median rank.
function latestRatio(row) {
  return row.ratio.findLast(Number.isFinite);
}

// Returns the index of the first part of the time since which a slow rank has been slow.
function slowSince({ ratio: all }, slow) {
  const normal = all.findLastIndex((ratio) => ratio !== null && ratio < slow);
  return all.findIndex((ratio, index) => index > normal && ratio !== null);
}
