// The daemon's GPUs and host during a run. The axis is always time, since these series have no steps.

import { MACHINE_MS, isDue } from "/static/polling.js";
import { getJson, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { zoomReset } from "/static/charts/interaction.js";
import { h, setText, ENDED } from "/static/dom.js";
import { GPU_CHARTS, HOST_CHARTS, gpuChart, labelValue } from "/static/machine/over_time.js";

const OF_HOST = ["CPU", "Memory"];

export class Machine {
  constructor(/** @type {Run} */ run, /** @type {RunSelection} */ selection, onZoom, signal) {
    this.id = run.id;
    this.selection = selection;
    this.gpus = undefined;
    this.ended = ENDED.has(run.state);
    this.loaded = performance.now();
    const ofHost = HOST_CHARTS.filter(({ title }) => OF_HOST.includes(title));
    const all = [...GPU_CHARTS.map((name) => gpuChart(name)), ...ofHost];
    this.charts = all.map((item) => this.#chart(item, onZoom, signal));
    this.reset = zoomReset(() => this.#zoom(onZoom));
    this.name = h("h2", {}, "Machine");
    this.note = h("span.quiet", {}, "over time");
    this.elsewhereText = h("p.quiet");
    this.grid = h("div.charts", {}, this.charts.map((item) => item.root));
    this.root = h("details.run-section", { open: true }, h("summary", {}, this.name, this.note, this.reset.button),
      this.elsewhereText, this.grid);
  }

  set(changes) {
    const settings = {};
    for (const name of ["marks", "robust"]) if (name in changes) settings[name] = changes[name];
    if ("by" in changes) [settings.from, settings.to] = [undefined, undefined];
    if (this.selection.by === "time" && "from" in changes) [settings.from, settings.to] = [changes.from, changes.to];
    for (const chart of this.charts) if (Object.keys(settings).length) chart.set(settings);
  }

  // The overview names a run's GPUs only while the run is live.
  update(/** @type {Overview} */ overview, run) {
    const runGpus = overview.gpus.filter((gpu) => gpu.ranks.some((item) => item.run === this.id)).map((gpu) => gpu.gpu);
    const other = runGpus.length > 0 && runGpus.join() !== this.gpus?.join();
    if (runGpus.length) this.gpus = runGpus;
    this.#updateHeading(overview.host.name, run.attempt_list, overview.gpus.length);
    const live = overview.runs.some((item) => item.id === this.id);
    for (const chart of this.charts.slice(0, GPU_CHARTS.length)) chart.root.hidden ||= live && !overview.gpus.length;
    if (!other && !(live && isDue(this.loaded, MACHINE_MS))) return;
    this.loaded = performance.now();
    for (const chart of this.charts) chart.refresh();
  }

  // The daemon measures only its own machine, which need not be the run's. If a GPU of it trains the run, it is.
  #updateHeading(name, attempts, gpus) {
    const attempt = attempts.find((item) => item.attempt === this.selection.attempt) ?? attempts.at(-1);
    const other = name && attempt?.host && attempt.host !== name && !this.gpus;
    setText(this.name, name ? `The daemon's machine, ${name}` : "The daemon's machine");
    setText(this.note,
      other ? "" : ["over time", gpus > 0 && !this.gpus && "all GPUs of this machine"].filter(Boolean).join(" · "));
    setText(this.elsewhereText, other ? `The run is on ${attempt.host}, which this daemon does not monitor.` : "");
    this.grid.hidden = Boolean(other);
  }

  #chart({ title, keys, lines: linesOf, ...settings }, onZoom, signal) {
    const { from, to } = this.selection.by === "time" ? this.selection : {};
    const load = async ({ from: begin, to: end, points, signal: chartSignal }) => {
      const search = query({ run: this.id, key: keys, from: begin, to: end, points });
      const { series } = await getJson(`machine?${search}`, chartSignal);
      const lines = linesOf(series.filter(({ key }) => this.#isOfRun(key)));
      // Such as GPUs of a machine without any, or of a run that was over after a moment.
      chart.root.hidden = this.ended && begin === undefined && lines.every((line) => line.points.length < 2);
      this.root.hidden = this.charts.every((item) => item.root.hidden);
      return lines;
    };
    const chart = new Chart({ title, by: "time", from, to, load, sync: "run-machine", ...settings,
      onZoom: (begin, end) => this.#zoom(onZoom, begin, end) }, signal);
    return chart;
  }

  // A zoom applies to the other charts of the page only if they have a time axis too.
  #zoom(onZoom, from, to) {
    if (this.selection.by === "time") onZoom(from, to);
    for (const chart of this.charts) chart.set({ from, to });
    this.reset.update(...(this.selection.by === "time" ? [] : [from, to]));
  }

  #isOfRun(key) {
    const gpu = labelValue(key, "gpu");
    return !gpu || ((!this.gpus || this.gpus.includes(gpu)) && (labelValue(key, "sensor") ?? "gpu") === "gpu");
  }
}
