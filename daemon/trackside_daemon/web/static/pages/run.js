// One run: its state, and tabs with charts of its keys and machine, its performance, its records, its configuration.

import { getJson, post, query, runPath } from "/static/api.js";
import { LARGE_RUN_MS, RUN_MS, coalesce, isDue } from "/static/polling.js";
import { Benchmarks } from "/static/run/benchmarks.js";
import { Captures } from "/static/run/captures.js";
import { Charts } from "/static/run/charts.js";
import { Checkpoints } from "/static/run/checkpoints.js";
import { Diagnosis } from "/static/run/diagnosis.js";
import { Ending } from "/static/run/ending.js";
import { editRun } from "/static/runs/edit.js";
import { Header, openShareDialog } from "/static/run/header.js";
import { Layers } from "/static/run/layers.js";
import { Machine } from "/static/run/machine.js";
import { Performance } from "/static/run/performance.js";
import { annotate, chartMarks } from "/static/run/marks.js";
import { Media } from "/static/run/media.js";
import { Reinforcement } from "/static/run/reinforcement.js";
import { attempts, configuration, Metrics, model, phases } from "/static/run/tables.js";
import { controls, Workspace, columnSelect } from "/static/run/workspace.js";
import { h, ENDED } from "/static/dom.js";

// `tabs` are [name, title, roots]. `select(name)` is called when the user opens one.
class Tabs {
  constructor(tabs, selected, select) {
    this.select = select;
    this.tabs = tabs.map(([name, title, roots]) => this.#make(name, title, roots));
    this.list = h("div.tabs", { role: "tablist", "aria-label": "Parts of the run",
      onkeydown: (event) => this.#key(event) }, this.tabs.map((item) => item.button));
    this.root = h("div", {}, this.list, this.tabs.map((item) => item.panel));
    this.observer = new MutationObserver(() => this.update());
    for (const root of tabs.flatMap(([, , roots]) => roots))
      this.observer.observe(root, { attributes: true, attributeFilter: ["hidden"] });
    this.open(this.tabs.some((item) => item.name === selected) ? selected : this.tabs[0].name);
  }

  open(name) {
    this.selected = name;
    this.update();
    const { button } = this.tabs.find((item) => item.name === name);
    requestAnimationFrame(() => { this.list.scrollLeft = button.offsetLeft - this.list.clientWidth / 2; });
  }

  // Hides tabs without content, except the one that is open.
  update() {
    for (const { name, button, panel, roots } of this.tabs) {
      const isOpen = name === this.selected;
      button.hidden = !isOpen && roots.every((root) => root.hidden);
      button.setAttribute("aria-selected", String(isOpen));
      button.tabIndex = isOpen ? 0 : -1;
      if (panel.hidden === isOpen) panel.hidden = !isOpen;
    }
  }

  #make(name, title, roots) {
    const button = h("button", { role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`,
      onclick: () => this.#choose(name) }, title);
    const panel = h("div", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, hidden: true },
      roots);
    return { name, button, panel, roots };
  }

  #choose(name) {
    this.open(name);
    this.select(name);
  }

  #key(event) {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    const shown = this.tabs.filter((item) => !item.button.hidden);
    const next = shown[(shown.findIndex((item) => item.name === this.selected) + direction +
      shown.length) % shown.length];
    this.#choose(next.name);
    next.button.focus();
  }
}

const LARGE_RUN_METRICS = 5000; // Metrics of a large run.
const SETTLING_SECONDS = 60; // Until the history has the last values of a run that has ended.
const MAX_MARKS = 500;

export const title = "Run";

export async function show(/** @type {Address} */ address) {
  const { signal } = address;
  const fetchRun = (id) => getJson(runPath(id), signal);
  const run = await fetchRun(address.parts.join("/"));
  const page = new RunPage(address, run, () => fetchRun(run.id));
  return { title: run.name, root: page.root, run: run.id, update: (overview) => page.update(overview),
    updateRun: (run) => page.updateRun(run) };
}

class RunPage {
  constructor(/** @type {Address} */ address, /** @type {Run} */ run, fetchRun) {
    this.run = run;
    this.fetchRun = fetchRun;
    this.signal = address.signal;
    this.reload = coalesce(() => this.#load());
    this.loadedAt = performance.now();
    this.newest = newestOf(run, run.metrics.map((metric) => metric.last_time));
    this.allMarks = [];
    this.selection = controls(address, (changes) => this.#changed(changes));
    const note = (notes, from) => post(`${runPath(run.id)}/about`, { notes, notes_before: from }).finally(this.reload);
    const share = () => openShareDialog(this.run, () => workspace.encode(), this.host, address.signal);
    this.head = new Header(run, { onEdit: () => this.#edit().catch(() => {}), onNotes: note, onShare: share });
    const onZoom = (from, to) => this.selection.zoom(from, to);
    const workspace = new Workspace(run.name, address.query.get("view"), () => this.charts.arrange());
    this.selection.tools.append(columnSelect(workspace));
    this.reinforcement = new Reinforcement(run, onSteps(this.selection), onZoom, address.signal);
    const onNote = (place) => annotate(run, place, this.reload, address.signal);
    this.charts = new Charts(run, this.selection, workspace, { onZoom, onNote }, address.signal);
    this.charts.update(run); // Before the charts of the machine ask for theirs.
    this.machine = new Machine(run, this.selection, onZoom, address.signal);
    this.metrics = new Metrics(this.selection);
    this.performance = new Performance(run, address.signal);
    this.diagnosis = new Diagnosis(run, address.signal, (found) => this.performance.showLedger(found));
    this.layers = new Layers(run, onSteps(this.selection), address.signal);
    const [benchmarks, checkpoints, captures] = [Benchmarks, Checkpoints, Captures].map((Section) =>
      new Section(run, address.signal));
    const [ending, media] = [new Ending(run, address.signal), new Media(run, address.signal)];
    const [phaseTimes, config, architecture, attemptTable] = [phases(), configuration(), model(), attempts()];
    const sections = [this.performance, this.diagnosis, ending, media, this.layers, benchmarks, checkpoints, captures,
      phaseTimes, config, architecture, attemptTable];
    this.sections = [];
    const times = { root: h("div.pair.run-times", {}, this.performance.ledger, phaseTimes.root) };
    /** @type {[string, string, { root: HTMLElement }[]][]} */
    const tabs = [
      ["charts", "Charts", [this.selection, this.charts, this.machine]],
      ["performance", "Performance", [this.performance, times]],
      ["learning", "Reinforcement", [this.reinforcement]],
      ["diagnosis", "Diagnosis", [this.diagnosis]],
      ["media", "Media", [media]],
      ["output", "Output", [ending]],
      ["model", "Model", [this.layers, architecture]],
      ["captures", "Captures", [captures]],
      ["checkpoints", "Checkpoints", [checkpoints]],
      ["benchmarks", "Benchmarks", [benchmarks]],
      ["details", "Details", [config, this.metrics, attemptTable, media.parts[1]]],
    ];
    this.first = run.tags.includes("benchmark") && !run.step ? "benchmarks" : "charts";
    this.tabs = new Tabs(tabs.map(([name, text, parts]) => [name, text, parts.map((part) => part.root)]),
      address.query.get("tab") ?? this.first, (tab) => this.#openTab(address, tab));
    this.root = h("div.run-page", {}, this.head.root, this.tabs.root);
    this.#show(run);
    this.head.updateExportLink(onSteps(this.selection), this.charts.filtered);
    this.#showOthers(sections).catch(() => {}); // The frame reports an outage, and nobody misses what is left.
  }

  // What the other tabs have comes after the first charts, since a browser has few connections.
  async #showOthers(sections) {
    if (this.tabs.selected === "charts" && this.run.metrics.length) await this.charts.loaded;
    if (this.signal.aborted) return;
    this.sections = sections;
    for (const item of sections) item.update(this.run);
    this.#loadMarks();
  }

  async #edit() {
    const result = await editRun(this.run, this.signal);
    if (result === "deleted") location.assign("/runs");
    else if (result) await this.reload();
  }

  // A section that was hidden loads when it is shown.
  #openTab(address, tab) {
    address.set({ tab: tab === this.first ? "" : tab });
    for (const item of this.sections) item.update(this.run);
  }

  #show(run) {
    const isNewer = run.metrics.some((metric, at) => metric.last_time !== this.run.metrics[at]?.last_time);
    if (isNewer && ENDED.has(run.state)) this.charts.updateLive({ step: run.step, time: run.ended, values: {} });
    this.run = run;
    this.head.update(run);
    this.selection.update(run);
    this.reinforcement.update(run);
    this.charts.update(run); // Before the charts of the machine ask for theirs.
    this.metrics.update(run);
    for (const item of this.sections) item.update(run);
  }

  #changed(changes) {
    if ("hide" in changes) this.#showMarks();
    this.reinforcement.set(changes);
    this.charts.set(changes);
    this.machine.set(changes);
    this.layers.set(changes);
    this.metrics.update(this.run);
    this.head.updateExportLink(onSteps(this.selection), this.charts.filtered);
  }

  // Called with each overview, which contains this run while it is live, and its alerts.
  update(/** @type {Overview} */ overview) {
    this.host = overview.host.name;
    const alerts = overview.alerts.filter((item) => item.run === this.run.id);
    this.head.updateLive({ row: overview.runs.find((item) => item.id === this.run.id), alerts, now: overview.time });
    this.machine.update(overview, this.run);
    this.performance.updateLive(overview);
    this.#reloadIfDue(alerts.length, overview.time);
  }

  // Called with the newest values of every key.
  updateRun(data) {
    const times = Object.values(data.values).flatMap((ranks) => Object.values(ranks).map((item) => item[1]));
    const newest = newestOf(data, times);
    if (newest === this.newest) return; // As the charts have it.
    const changed = data.state !== this.run.state;
    this.newest = newest;
    this.head.updateLive({ newest: data });
    this.reinforcement.refresh();
    this.charts.updateLive(data);
    if (changed || Object.keys(data.values).some((key) => !this.charts.has(key))) this.reload();
  }

  #reloadIfDue(firing, now) {
    const interval = this.run.metrics.length > LARGE_RUN_METRICS ? LARGE_RUN_MS : RUN_MS;
    const settled = ENDED.has(this.run.state) && now - this.run.ended > SETTLING_SECONDS;
    if ((isDue(this.loadedAt, interval) && !settled) || firing !== (this.firing ?? firing)) this.reload();
    this.firing = firing;
  }

  async #load() {
    this.loadedAt = Infinity; // It is not due while it loads.
    try {
      this.#show(await this.fetchRun());
      await this.#loadMarks();
    } catch {
      // The frame reports the outage; the next update tries again.
    }
    this.loadedAt = performance.now();
  }

  async #loadMarks() {
    const search = query({ run: this.run.id, limit: MAX_MARKS });
    const [{ events }, { alerts }] = await Promise.all(
      ["events", "alerts"].map((kind) => getJson(`${kind}?${search}`, this.signal)));
    this.allMarks = chartMarks(events, alerts);
    this.selection.updateMarks(this.allMarks);
    const notices = Object.entries({ events, alerts })
      .flatMap(([kind, list]) => (list.length < MAX_MARKS ? [] : [`Only the newest ${MAX_MARKS} ${kind} are marked.`]));
    this.charts.set({ notice: notices.join(" ") });
    this.#showMarks();
  }

  #showMarks() {
    const marks = this.allMarks.filter((mark) => !this.selection.hide.includes(mark.kind));
    this.charts.set({ marks });
    this.reinforcement.set({ marks });
    this.machine.set({ marks });
    this.performance.set({ marks });
  }
}

const newestOf = (/** @type {Run | NewestValues} */ { state, step }, times) => `${state} ${step} ${Math.max(...times)}`;

// The selection for parts that only have steps and times, to which a window of another axis does not apply.
function onSteps(selection) {
  const isPlain = () => selection.by === "step" || selection.by === "time";
  const get = (name, otherwise) => ({ get: () => (isPlain() ? selection[name] : otherwise), enumerable: true });
  return Object.create(selection, { by: get("by", "step"), from: get("from"), to: get("to") });
}
