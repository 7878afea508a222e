// A chart of every key, in sections by the first part of the key's name, up to a slash; pinned ones come first.

import { getJson, getSeries, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { downloadReport } from "/static/export/files.js";
import { afterDrawing } from "/static/charts/draw_queue.js";
import { calculated, isTime, withDetails } from "/static/charts/lines.js";
import { AxisTable, axisTitle } from "/static/run/x_axis.js";
import { FORMULAS } from "/static/charts/settings.js";
import { h, rerender, syncRows, setText, setTitle, icon } from "/static/dom.js";
import { betterDirection, isLoss, keyFilter, twins } from "/static/run/keys.js";
import { plural, real } from "/static/format.js";
import { toggled } from "/static/run/workspace.js";

const MAX_OPEN = 48; // Sections with more charts start closed.
const MAX_BUCKETS = 100_000; // Per request for several keys; the daemon reduces larger requests.
const LAST_KEYS = ["epoch", "samples", "tokens"];
const CHART_SETTINGS = ["by", "smooth", "log", "robust", "marks", "from", "to"];
const AROUND_POINTS = 400; // Points of the neighborhood of a window, for smoothing.
const AROUND_SPANS = 4; // Its width on each side in spans of the smoothing.
const PINNED = "Pinned";
const FAR = 5; // Times as large values of a second key have an axis of their own.

const LONG_MS = 1000;
const DELAY_MS = 10; // Requests within this time are combined.
const ROWS_KEYS = 6; // Keys of one request for what a chart has not shown yet: the first charts need not wait for all.

const TYPE = "text/x-trackside-chart";

export class Charts {
  constructor(/** @type {Run} */ run, /** @type {RunSelection} */ selection, /** @type {RunWorkspace} */ workspace,
    handlers, signal) {
    this.id = run.id;
    this.run = run;
    this.selection = selection;
    this.workspace = workspace;
    this.handlers = handlers; // Those of its charts.
    this.signal = signal;
    this.charts = new Map();
    this.marks = [];
    this.batch = new SeriesBatch(signal);
    this.loading = 0;
    // Settled when the charts on the screen are drawn, or take long.
    this.loaded = new Promise((go) => {
      this.onLoaded = () => go(undefined);
      setTimeout(go, LONG_MS);
    });
    this.axis = new AxisTable(run, signal);
    this.sections = h("div");
    this.emptyText = h("p.quiet");
    this.hidden = h("p.quiet");
    this.notice = h("p.quiet");
    const parts = [selection.marks, this.emptyText, this.notice, this.sections, this.hidden];
    this.root = h("section", { "aria-label": "Charts" }, parts);
  }

  has(key) {
    return this.charts.has(key);
  }

  // The keys that match the filter; empty without a filter.
  get filtered() {
    return this.selection.filter ? this.#filteredKeys() : [];
  }

  update(/** @type {Run} */ run) {
    this.run = run;
    this.bounds = undefined;
    this.attempts = run.attempt_list.length;
    for (const { key } of run.metrics) if (!this.charts.has(key)) this.charts.set(key, this.#chart(key));
    this.arrange();
  }

  // Applies changed settings; some of them need new data.
  set(changes) {
    if (changes.marks) this.marks = changes.marks;
    if ("by" in changes || "attempt" in changes) this.bounds = undefined;
    if ("notice" in changes) setText(this.notice, changes.notice);
    const settings = Object.fromEntries(Object.entries(changes).filter(([name]) => CHART_SETTINGS.includes(name)));
    if ("by" in settings) settings.byTitle = axisTitle(settings.by);
    for (const chart of this.charts.values()) {
      if (Object.keys(settings).length) chart.set(settings);
      if ("ranks" in changes || "attempt" in changes) chart.reload();
    }
    if ("filter" in changes) this.arrange();
  }

  // Reloads the charts whose window contains the new step.
  updateLive({ step, time, values }) {
    const { by, to, ranks } = this.selection;
    for (const [key, chart] of this.charts) {
      const ofRanks = values[key] ?? {};
      const lowest = ofRanks[Math.min(...Object.keys(ofRanks).map(Number))];
      chart.legend.setNewest(to === undefined && ranks === "lowest" && !chart.second ? lowest?.[2] : undefined);
    }
    const newest = { step, time: time - 10 }[by] ?? Infinity;
    if (to !== undefined && to < newest) return;
    for (const chart of this.charts.values()) chart.refresh();
  }

  // Places the charts as the workspace has them.
  arrange() {
    const { workspace } = this;
    const matching = this.#filteredKeys();
    const pairs = twins(matching);
    for (const [key, chart] of this.charts) this.#join(chart, key, workspace.own[key] ?? {}, pairs.get(key));
    const joined = new Set([...pairs].filter(([key, twin]) => this.charts.get(key).second === twin)
      .map(([, twin]) => twin));
    const shown = matching.filter((key) => !joined.has(key));
    const keys = workspace.sort(shown.filter((key) => !workspace.hidden.includes(key)));
    const hidden = shown.length - keys.length;
    rerender(this.hidden, String(hidden), () => (hidden ? [plural(hidden, "hidden chart"), " ",
      h("button.small", { onclick: () => workspace.set({ hidden: [] }) }, "Show")] : []));
    const pinned = this.workspace.pinned.filter((key) => keys.includes(key));
    this.emptyText.hidden = keys.length > 0;
    setText(this.emptyText, this.charts.size
      ? `No key matches “${this.selection.filter}”.` : "No values yet. Add trackside.push(step=step, loss=loss).");
    const all = [...(pinned.length ? [[PINNED, pinned]] : []),
      ...sections(keys.filter((key) => !pinned.includes(key)), this.workspace)];
    this.shown = all.flatMap(([, sectionKeys]) => sectionKeys);
    syncRows(this.sections, all, ([name]) => name, ([name, sectionKeys]) => this.#section(name, sectionKeys.length));
    this.sections.dataset.columns = this.workspace.columns || "";
  }

  // Has a chart show a second key too, or a formula of both: what the user has chosen, which may be none, or the
  // evaluation.
  #join(chart, key, { second: chosen = undefined, formula = "" }, twin) {
    const second = chosen === "" || this.charts.has(chosen) ? chosen : twin;
    if (chart.second === second && chart.formula === formula) return;
    Object.assign(chart, { second, formula });
    chart.legend.setNewest(undefined);
    setTitle(chart.heading, second ? `${key} ${FORMULAS[formula]} ${second}` : key);
    chart.view.turn = second && second === twin && !formula && (betterDirection(key) ?? "less");
    if (chart.requestedAt) chart.reload();
  }

  #chart(key) {
    const { by, smooth, log, robust, from, to } = this.selection;
    const { workspace } = this;
    const bounds = () => (this.bounds ??= this.#bounds());
    const axis = { by, byTitle: axisTitle(by), origin: this.run.started, from, to, bounds };
    const settings = { title: key, of: this.run.name, ...axis, smooth, log, robust,
      marks: this.marks, sync: "run", reduceHint: "select an attempt or the band", own: workspace.own[key] ?? {} };
    const onOwn = (own) => workspace.set({ own: { ...workspace.own, [key]: own },
      full: chart.isFull ? [...new Set([...workspace.full, key])] : workspace.full.filter((item) => item !== key) });
    const { onZoom, onNote } = this.handlers;
    const load = (request) => this.#loadBoth([key, chart.second], chart.formula, request);
    const chart = new Chart({ ...settings, onZoom, onNote, onOwn, load }, this.signal);
    chart.svg = () => downloadReport(this.run, { format: "svg", key }, this.signal);
    chart.others = () => [...this.charts.keys()].filter((other) => other !== key);
    if (workspace.full.includes(key)) chart.setFull(true);
    arrangeable(chart, key, workspace, () => this.shown);
    return chart;
  }

  // The ends of the axis of all charts: those of all keys.
  #bounds() {
    const { by, attempt } = this.selection;
    const name = by === "step" ? "step" : "time";
    const zero = by === "relative" ? this.run.started : 0;
    const ends = isTime(by) || by === "step" ? this.run.metrics
      .filter((item) => attempt === undefined || item.attempt === attempt)
      .flatMap((item) => [item[`first_${name}`] ?? NaN, item[`last_${name}`] ?? NaN]).filter(Number.isFinite) : [];
    if (!ends.length) return [];
    return [Math.min, Math.max].map((choose) => ends.reduce((most, end) => choose(most, end)) - zero);
  }

  // The lines of a key, and of a second one after it, or of the formula of both, for each rank and attempt.
  async #loadBoth([key, second], formula, request) {
    if (!second) return this.#load(key, request);
    if (formula) {
      const [lines, others] = await Promise.all([key, second].map((name) => this.#load(name, request)));
      return lines.flatMap((line) => {
        const other = others.find((item) => item.label === line.label);
        return other ? [{ ...line, around: undefined,
          points: calculated(line.points, other.points, formula, isTime(request.by) ? 1 : 0) }] : [];
      });
    }
    const both = await Promise.all([key, second].map(async (name) => (await this.#load(name, request)).map((line) =>
      ({ ...line, label: [name, line.label].filter(Boolean).join(", ") }))));
    const [size, other] = both.map((lines) => lines.flatMap((line) => line.points).reduce((most, point) =>
      Math.max(most, Math.abs(real(point[6] ?? point[4])) || 0), 0));
    const isPair = this.charts.get(key).view.turn; // An evaluation has the axis of what was trained.
    const isFar = !isPair && !(Math.max(size, other) < FAR * Math.min(size, other));
    return both.flat().map((line, index) => ({ ...line, index, right: isFar && index >= both[0].length }));
  }

  async #load(key, request) {
    const { by, from, to } = request;
    const { started } = this.run;
    if (by === "step" || by === "time") return this.#loadWindow(key, request, (points) => points);
    if (by === "relative") {
      const [low, high] = [from, to].map((item) => (item === undefined ? undefined : item + started));
      return this.#loadWindow(key, { ...request, by: "time", from: low, to: high },
        (points) => points.map(([step, time, ...rest]) => [step, time - started, ...rest]));
    }
    await this.axis.load(by, this.run);
    const [low, high] = from === undefined && to === undefined ? [] : this.axis.steps(from, to);
    return this.#loadWindow(key, { ...request, by: "step", from: low, to: high }, (points) => this.axis.place(points));
  }

  // Loads a window with, if it is a part and lines are smoothed, its neighborhood. `place` puts points on the axis.
  async #loadWindow(key, request, place) {
    const { smooth, ranks } = this.selection;
    const around = smooth && request.from !== undefined ? this.#around(key, request, smooth.span) : undefined;
    const series = await this.#series(key, request);
    const beyond = new Map((await around)?.map((item) => [`${item.attempt} ${item.rank}`, place(withDetails(item))]));
    const attempts = new Set(series.map((each) => each.attempt)).size;
    return series.map((item, index) => ({ ...toLine(item, index, ranks, attempts), points: place(withDetails(item)),
      around: beyond.get(`${item.attempt} ${item.rank}`) }));
  }

  async #around(key, { by, from, to, signal }, span) {
    const seconds = (this.run.ended ?? Date.now() / 1000) - this.run.started;
    const steps = this.run.metrics.reduce((most, item) => Math.max(most, item.last_step ?? 0), 1);
    const reach = AROUND_SPANS * span * (isTime(by) ? seconds / steps : 1);
    return this.#series(key, { by, from: from - reach, to: to + reach, points: AROUND_POINTS, signal });
  }

  async #series(key, /** @type {ChartRequest} */ { by, from, to, points, signal, isReload }) {
    const { ranks, attempt } = this.selection;
    const ranksQuery = { lowest: {}, all: { rank: "all" }, band: { ranks: "band" } }[ranks];
    const params = { run: this.id, by, from, to, points, attempt, mean: true, ...ranksQuery };
    const maxKeys = Math.min(isReload ? Infinity : ROWS_KEYS, Math.floor(MAX_BUCKETS / points / this.attempts));
    const isShared = ranks === "lowest" && maxKeys > 1;
    const series = isShared ? this.batch.series(key, params, maxKeys) : getSeries({ ...params, key }, signal);
    this.loading += 1;
    return series.finally(() => (this.loading -= 1) || afterDrawing(this.onLoaded));
  }

  #filteredKeys() {
    return [...this.charts.keys()].filter(keyFilter(this.selection.filter));
  }

  #section(name, count) {
    const grid = h("div.charts");
    const head = h("span.quiet");
    const byDefault = count <= MAX_OPEN;
    const root = h("details.run-section", { open: this.workspace.isOpen(name, byDefault) },
      h("summary", {}, h("h2", {}, name || "Charts"), head), grid);
    root.addEventListener("toggle", () => {
      if (root.open !== this.workspace.isOpen(name, byDefault))
        this.workspace.toggleSection(name, root.open, byDefault);
    });
    root.update = ([, keys]) => {
      setText(head, plural(keys.length, "key"));
      syncRows(grid, keys, (key) => key, (key) => this.charts.get(key).root);
    };
    return root;
  }
}

function toLine(item, index, params, attempts) {
  const { attempt, rank, ranks } = item;
  const ranksText = { band: `${plural(ranks, "rank")}, median`, all: `rank ${rank}` }[params];
  const attemptText = attempts > 1 ? `attempt ${attempt}` : "";
  return { label: [ranksText, attemptText].filter(Boolean).join(", "),
    index: params === "all" && attempts === 1 ? rank : index };
}

// Returns [name, keys] of each section: those with a loss first, then the unnamed one; within one, losses first.
export function sections(keys, workspace = { order: [] }) {
  const prefix = (key) => key.slice(0, Math.max(0, key.indexOf("/")));
  const indexes = new Map(keys.map((key, index) => [key, index]));
  const groups = new Map([["", []]]);
  for (const key of keys) groups.set(prefix(key), [...(groups.get(prefix(key)) ?? []), key]);
  for (const [name, sectionKeys] of groups) {
    if (!name || sectionKeys.length > 1) continue;
    groups.get("").push(...sectionKeys);
    groups.delete(name);
  }
  const rank = (key) => (isLoss(key) ? 0 : 1 + Number(LAST_KEYS.includes(key)));
  const isPlaced = workspace.order.length > 0; // By hand: losses need not come first.
  const order = (a, b) => (isPlaced ? 0 : rank(a) - rank(b)) || indexes.get(a) - indexes.get(b);
  return [...groups].filter(([, sectionKeys]) => sectionKeys.length)
    .map(([name, sectionKeys]) => [name, sectionKeys.sort(order)])
    .sort(([, [a]], [, [b]]) => (isPlaced ? 0 : Number(isLoss(b)) - Number(isLoss(a))));
}

// Combines the requests of several charts for the same window into one request for several keys.
class SeriesBatch {
  constructor(signal) {
    this.signal = signal;
    this.waiting = new Map();
  }

  // Resolves to the series of a key. `params` are the other parameters, and `maxKeys` limits the keys of one request.
  async series(key, params, maxKeys) {
    const rest = query(params);
    const batch = this.waiting.get(rest) ?? this.#start(rest);
    batch.keys.push(key);
    if (batch.keys.length >= maxKeys) batch.send(); // At once: before what other charts request.
    const { series } = await batch.answer;
    return series.filter((item) => item.key === key);
  }

  #start(rest) {
    const batch = { keys: [] };
    this.waiting.set(rest, batch);
    batch.answer = new Promise((resolve) => {
      const timer = setTimeout(() => batch.send(), DELAY_MS);
      batch.send = () => {
        clearTimeout(timer);
        this.waiting.delete(rest);
        resolve(getJson(`series?missing=ignore&${rest}&${query({ key: batch.keys })}`, this.signal));
      };
    });
    return batch;
  }
}

// Adds the handle, the pin and what hides it to a chart. `keys()` returns all keys as they are shown.
function arrangeable(chart, key, workspace, keys) {
  const { root } = chart;
  const pin = icon("pin", "Pin to the top", () =>
    workspace.set({ pinned: toggled(workspace.pinned, key) }));
  const hide = icon("hide", `Hide ${key}`, () => workspace.set({ hidden: [...workspace.hidden, key] }));
  const handle = icon("drag", `Move ${key}: drag, or press [ and ]`, () => {});
  handle.classList.add("drag");
  handle.draggable = true;
  chart.tools.prepend(pin);
  chart.tools.append(hide);
  chart.heading.before(handle);
  root.chart = chart;
  root.update = () => pin.setAttribute("aria-pressed", String(workspace.pinned.includes(key)));
  root.update();
  root.pin = pin;

  handle.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData(TYPE, key);
    event.dataTransfer.setDragImage(root, 20, 20);
  });
  root.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes(TYPE)) return;
    event.preventDefault();
    root.classList.add("drop");
  });
  root.addEventListener("dragleave", () => root.classList.remove("drop"));
  // In the middle, both keys share the chart; near an edge, the other one moves to that side.
  root.addEventListener("drop", (event) => {
    event.preventDefault();
    root.classList.remove("drop");
    const moved = event.dataTransfer.getData(TYPE);
    const { left, width } = root.getBoundingClientRect();
    const place = (event.clientX - left) / width;
    if (!moved || moved === key) return;
    if (Math.abs(place - 0.5) < 0.25) chart.setOwn({ ...chart.own, second: moved });
    else workspace.move(moved, key, keys(), place > 0.5);
  });
  // Moves by so many places among the charts beside it.
  root.moveBy = (count) => {
    const siblings = [...root.parentElement.children];
    const other = siblings[siblings.indexOf(root) + count]?.chart;
    if (!other) return;
    workspace.move(key, other.title, keys(), count > 0);
    chart.plot.focus();
  };
}
