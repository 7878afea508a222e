// One run: its state, charts of all keys, the machine meanwhile, and its configuration.

import { getJson, query } from "/static/api.js";
import { Benchmarks } from "/static/run/benchmarks.js";
import { Captures } from "/static/run/captures.js";
import { Charts } from "/static/run/charts.js";
import { Checkpoints } from "/static/run/checkpoints.js";
import { Diagnosis } from "/static/run/diagnosis.js";
import { Header } from "/static/run/header.js";
import { Layers } from "/static/run/layers.js";
import { Machine } from "/static/run/machine.js";
import { chartMarks } from "/static/run/marks.js";
import { Reinforcement } from "/static/run/reinforcement.js";
import { phases } from "/static/run/phases.js";
import { attempts, configuration, Metrics, model } from "/static/run/tables.js";
import { controls } from "/static/run/controls.js";
import { h } from "/static/dom.js";
import { ENDED } from "/static/components.js";

const RELOAD_MS = 5000; // Interval of reloads of what the stream does not contain.
const LARGE_RELOAD_MS = 15_000; // The same for large runs, whose document is about a megabyte.
const LARGE_RUN_METRICS = 5000; // Metrics of a large run.
const MAX_MARKS = 500;

export const title = "Run";

export async function show(address) {
  const { signal } = address;
  const fetchRun = (id) => getJson(`runs/${encodeURIComponent(id)}`, { signal });
  const run = await fetchRun(address.parts.join("/"));
  const page = new RunPage(address, run, () => fetchRun(run.id));
  return { title: run.name, root: page.root, run: run.id, update: (overview) => page.update(overview), updateRun: (run) => page.updateRun(run) };
}

class RunPage {
  constructor(address, run, fetchRun) {
    Object.assign(this, { run, fetchRun, signal: address.signal, loadedAt: performance.now(), newest: "" });
    this.selection = controls(address, run, (changes) => this.#changed(changes));
    this.head = new Header(run);
    const onZoom = (from, to) => this.selection.zoom(from, to);
    this.reinforcement = new Reinforcement(run, this.selection, onZoom, address.signal);
    this.charts = new Charts(run, this.selection, onZoom, address.signal);
    this.machine = new Machine(run, this.selection, onZoom, address.signal);
    this.metrics = new Metrics(this.selection);
    this.diagnosis = new Diagnosis(run, address.signal);
    this.layers = new Layers(run, this.selection, address.signal);
    const recorded = [Benchmarks, Checkpoints, Captures].map((Section) => new Section(run, address.signal));
    this.sections = [this.diagnosis, this.layers, ...recorded, phases(), configuration(), model(), attempts()];
    const parts = [this.head, this.diagnosis, this.selection, this.reinforcement, this.charts, this.machine, this.metrics, ...this.sections.slice(1)];
    this.root = h("div.run-page", {}, parts.map((item) => item.root));
    this.#show(run);
    this.head.updateExportLink(this.selection, this.charts.filtered);
    this.#loadMarks();
  }

  #show(run) {
    this.run = run;
    this.head.update(run);
    this.selection.update(run);
    this.reinforcement.update(run);
    this.charts.update(run);
    this.metrics.update(run);
    for (const item of this.sections) item.update(run);
  }

  #changed(changes) {
    this.reinforcement.set(changes);
    this.charts.set(changes);
    this.machine.set(changes);
    this.layers.set(changes);
    this.metrics.update(this.run);
    this.head.updateExportLink(this.selection, this.charts.filtered);
  }

  // Called with each overview, which contains this run while it is live, and its alerts.
  update(overview) {
    const alerts = overview.alerts.filter((item) => item.run === this.run.id);
    this.head.updateLive({ row: overview.runs.find((item) => item.id === this.run.id), alerts, now: overview.time });
    this.machine.update(overview, this.run);
    this.#reloadIfDue(alerts.length);
  }

  // Called with the newest values of every key.
  updateRun(data) {
    const times = Object.values(data.values).flatMap((ranks) => Object.values(ranks).map((item) => item[1]));
    const newest = `${data.state} ${data.step} ${Math.max(...times)}`;
    if (newest === this.newest) return;
    const changed = this.newest && data.state !== this.run.state;
    this.newest = newest;
    this.head.updateLive({ newest: data });
    this.reinforcement.refresh();
    this.charts.updateLive(data);
    if (changed || Object.keys(data.values).some((key) => !this.charts.has(key))) this.#reload();
  }

  #reloadIfDue(firing) {
    const interval = this.run.metrics.length > LARGE_RUN_METRICS ? LARGE_RELOAD_MS : RELOAD_MS;
    const due = performance.now() - this.loadedAt > interval && !ENDED.has(this.run.state) && !document.hidden;
    if (due || firing !== (this.firing ?? firing)) this.#reload();
    this.firing = firing;
  }

  async #reload() {
    if (this.loading) return;
    this.loading = true;
    try {
      this.#show(await this.fetchRun());
      await this.#loadMarks();
    } catch {
      // The frame reports the outage; the next update tries again.
    }
    this.loadedAt = performance.now();
    this.loading = false;
  }

  async #loadMarks() {
    const search = query({ run: this.run.id, limit: MAX_MARKS });
    const [{ events }, { alerts }] = await Promise.all(["events", "alerts"].map((kind) => getJson(`${kind}?${search}`, { signal: this.signal })));
    const marks = chartMarks(events, alerts);
    const notices = Object.entries({ events, alerts }).flatMap(([kind, list]) => (list.length < MAX_MARKS ? [] : [`Only the newest ${MAX_MARKS} ${kind} are marked.`]));
    this.reinforcement.set({ marks });
    this.charts.set({ marks, notice: notices.join(" ") });
    this.machine.set({ marks });
  }
}
