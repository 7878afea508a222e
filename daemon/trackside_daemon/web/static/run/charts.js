// A chart of every key, in sections by the first part of the key's name, up to a slash.

import { getJson, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { withNonfinite } from "/static/charts/lines.js";
import { SeriesBatch } from "/static/run/series_batch.js";
import { h, syncRows, setText } from "/static/dom.js";
import { isLoss } from "/static/run/keys.js";
import { plural } from "/static/format.js";

const MAX_OPEN = 48; // Sections with more charts start closed.
const MAX_BUCKETS = 100_000; // Per request for several keys; the daemon reduces larger requests.
const LAST_KEYS = ["epoch", "samples", "tokens"];
const CHART_SETTINGS = ["by", "smooth", "log", "marks", "from", "to"];

export class Charts {
  constructor(run, selection, onZoom, signal) {
    Object.assign(this, { id: run.id, selection, onZoom, signal, charts: new Map(), marks: [] });
    this.batch = new SeriesBatch(signal);
    this.sections = h("div");
    this.emptyText = h("p.quiet");
    this.notice = h("p.quiet", { hidden: true });
    this.root = h("section", { "aria-label": "Charts" }, this.emptyText, this.notice, this.sections);
  }

  has(key) {
    return this.charts.has(key);
  }

  // The keys that match the filter; empty without a filter.
  get filtered() {
    return this.selection.filter ? this.#filteredKeys() : [];
  }

  update(run) {
    this.attempts = run.attempt_list.length;
    for (const { key } of run.metrics) if (!this.charts.has(key)) this.charts.set(key, this.#chart(key));
    this.#arrange();
  }

  // Applies changed settings; some of them need new data.
  set(changes) {
    if (changes.marks) this.marks = changes.marks;
    if ("notice" in changes) setText(this.notice, changes.notice);
    this.notice.hidden = !this.notice.textContent;
    const settings = Object.fromEntries(Object.entries(changes).filter(([name]) => CHART_SETTINGS.includes(name)));
    for (const chart of this.charts.values()) {
      if (Object.keys(settings).length) chart.set(settings);
      if ("ranks" in changes || "attempt" in changes) chart.reload();
    }
    if ("filter" in changes) this.#arrange();
  }

  // Reloads the charts whose window contains the new step.
  updateLive({ step, time }) {
    const { by, to } = this.selection;
    if (to !== undefined && to < (by === "step" ? step : time - 10)) return;
    for (const chart of this.charts.values()) chart.refresh();
  }

  #chart(key) {
    const { by, smooth, log, from, to } = this.selection;
    const settings = { title: key, by, smooth, log, from, to, marks: this.marks, sync: "run", reduceHint: "select an attempt or the band" };
    return new Chart({ ...settings, onZoom: this.onZoom, load: (request) => this.#load(key, request) }, this.signal);
  }

  async #load(key, { by, from, to, points, signal, isReload }) {
    const { ranks, attempt } = this.selection;
    const ranksQuery = { lowest: {}, all: { rank: "all" }, band: { ranks: "band" } }[ranks];
    const params = { run: this.id, by, from, to, points, attempt, ...ranksQuery };
    const maxKeys = Math.floor(MAX_BUCKETS / points / this.attempts);
    const batch = isReload && ranks === "lowest" && maxKeys > 1;
    const series = batch ? await this.batch.series(key, params, maxKeys) : (await getJson(`series?${query({ ...params, key })}`, { signal })).series;
    const attempts = new Set(series.map((each) => each.attempt)).size;
    return series.map((item, index) => toLine(item, index, ranks, attempts));
  }

  #filteredKeys() {
    const params = this.selection.filter.toLowerCase();
    return [...this.charts.keys()].filter((key) => key.toLowerCase().includes(params));
  }

  #arrange() {
    const keys = this.#filteredKeys();
    this.emptyText.hidden = keys.length > 0;
    setText(this.emptyText, this.charts.size ? `No key contains “${this.selection.filter}”.` : "No values yet. Add trackside.push(step=step, loss=loss).");
    syncRows(this.sections, sections(keys), ([name]) => name, ([name, sectionKeys]) => section(name, sectionKeys.length, (key) => this.charts.get(key).root));
  }
}

function toLine(item, index, params, attempts) {
  const { attempt, rank, ranks } = item;
  const ranksQuery = params === "band" ? `${plural(ranks, "rank")}, median` : params === "all" ? `rank ${rank}` : "";
  const attemptText = attempts > 1 ? `attempt ${attempt}` : "";
  return { label: [ranksQuery, attemptText].filter(Boolean).join(", "), index: params === "all" && attempts === 1 ? rank : index, points: withNonfinite(item) };
}

function section(name, count, rootOf) {
  const grid = h("div.charts");
  const head = h("span.quiet");
  const root = h("details.run-section", { open: count <= MAX_OPEN }, h("summary", {}, h("h2", {}, name || "Charts"), head), grid);
  root.update = ([, keys]) => {
    setText(head, plural(keys.length, "key"));
    syncRows(grid, keys, (key) => key, rootOf);
  };
  return root;
}

// Returns [name, keys] of each section: the unnamed section first; within a section, losses first.
export function sections(keys) {
  const prefix = (key) => key.slice(0, Math.max(0, key.indexOf("/")));
  const indexes = new Map(keys.map((key, index) => [key, index]));
  const groups = new Map([["", []]]);
  for (const key of keys) groups.set(prefix(key), [...(groups.get(prefix(key)) ?? []), key]);
  for (const [name, sectionKeys] of groups) {
    if (!name || sectionKeys.length > 1) continue;
    groups.get("").push(...sectionKeys);
    groups.delete(name);
  }
  const rank = (key) => (isLoss(key) ? 0 : LAST_KEYS.includes(key) ? 2 : 1);
  const order = (a, b) => rank(a) - rank(b) || indexes.get(a) - indexes.get(b);
  return [...groups].filter(([, sectionKeys]) => sectionKeys.length).map(([name, sectionKeys]) => [name, sectionKeys.sort(order)]);
}
