// The daemon's GPUs and host during a run. The axis is always time, since these series have no steps.

import { MACHINE_MS, isDue } from "/static/polling.js";
import { getJson, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { zoomReset } from "/static/charts/interaction.js";
import { h, setText, ENDED } from "/static/dom.js";
import { bytes, number, percent, real } from "/static/format.js";

const unit = (name) => (value) => (real(value) === undefined ? "" : `${number(value, 4)} ${name}`);

const GPU = [
  { title: "GPU utilization", keys: ["trackside_gpu_utilization_ratio"], format: (value) => percent(value),
    range: [0, 1] },
  { title: "GPU memory used", keys: ["trackside_gpu_memory_used_bytes"], format: bytes, binary: true, range: [0] },
  { title: "GPU power", keys: ["trackside_gpu_power_watts"], format: unit("W"), range: [0] },
  { title: "GPU temperature", keys: ["trackside_gpu_temperature_celsius"], format: unit("°C") },
];
const MEMORY = ["trackside_host_memory_bytes", "trackside_host_memory_available_bytes"];
const HOST = [
  { title: "Host CPU", keys: ["trackside_host_cpu_seconds_total"], format: (value) => percent(value), range: [0, 1],
    derive: cpuBusy },
  { title: "Host memory used", keys: MEMORY, format: bytes, binary: true, range: [0], derive: memoryLines },
];

export class Machine {
  constructor(/** @type {Run} */ run, /** @type {RunSelection} */ selection, onZoom, signal) {
    this.id = run.id;
    this.selection = selection;
    this.gpus = undefined;
    this.ended = ENDED.has(run.state);
    this.loaded = performance.now();
    this.charts = [...GPU, ...HOST].map((item) => this.#chart(item, onZoom, signal));
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
    for (const chart of this.charts.slice(0, GPU.length)) chart.root.hidden ||= live && !overview.gpus.length;
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

  #chart({ title, keys, derive = undefined, ...settings }, onZoom, signal) {
    const { from, to } = this.selection.by === "time" ? this.selection : {};
    const load = async ({ from: begin, to: end, points, signal: chartSignal }) => {
      const search = query({ run: this.id, key: keys, by: "time", from: begin, to: end, points });
      const { series } = await getJson(`series?${search}`, chartSignal);
      const lines = derive ? derive(series) : this.#runGpus(series);
      chart.root.hidden = this.ended && !lines.length && begin === undefined; // Such as GPUs of a machine without any.
      return lines;
    };
    const update = (begin, end) => this.#zoom(onZoom, begin, end);
    const chart = new Chart({ title, by: "time", from, to, load, onZoom: update, sync: "run-machine", ...settings },
      signal);
    return chart;
  }

  // A zoom applies to the other charts of the page only if they have a time axis too.
  #zoom(onZoom, from, to) {
    if (this.selection.by === "time") onZoom(from, to);
    for (const chart of this.charts) chart.set({ from, to });
    this.reset.update(...(this.selection.by === "time" ? [] : [from, to]));
  }

  #runGpus(series) {
    return gpuLines(series.filter(({ key }) =>
      (!this.gpus || this.gpus.includes(labelValue(key, "gpu"))) && (labelValue(key, "sensor") ?? "gpu") === "gpu"));
  }
}

// Returns one line per GPU, named by its number, and by its UUID too if several GPUs had that number.
export function gpuLines(series) {
  const measured = series.filter((item) => item.points.length)
    .map(({ key, points }) => ({ gpu: labelValue(key, "gpu"), uuid: labelValue(key, "uuid"), points }));
  return measured.map(({ gpu, uuid, points }, index) => {
    const unique = measured.filter((item) => item.gpu === gpu).length === 1;
    return { label: unique ? `GPU ${gpu}` : `GPU ${gpu}, ${uuid}`,
      index: unique && Number.isInteger(Number(gpu)) ? Number(gpu) : index, points };
  });
}

export function labelValue(key, name) {
  return new RegExp(`[{,]${name}="([^"]*)"`).exec(key)?.[1];
}

// Returns the share of time that the host's CPUs were busy, from counters of seconds by mode.
export function cpuBusy(series) {
  const modes = series.filter((item) => item.points.length);
  if (!modes.length) return [];
  const idle = new Set(["idle", "iowait"]);
  const [first] = modes;
  const points = first.points.slice(1).flatMap((point, index) => {
    const growth = modes.map((item) => (item.points[index + 1]?.[4] ?? NaN) - (item.points[index]?.[4] ?? NaN));
    const total = growth.reduce((a, b) => a + b, 0);
    const idleTime = growth.filter((_, mode) => idle.has(labelValue(modes[mode].key, "mode"))).reduce((a, b) => a + b,
      0);
    const ratio = 1 - idleTime / total;
    return total > 0 && ratio >= 0 ? [[0, point[1], ratio, ratio, ratio]] : [];
  });
  return [{ label: "", index: 0, points }];
}

// Returns the used, cached and swapped memory.
export function memoryLines(series) {
  const of = (name) => series.find((item) => item.key.split("{")[0] === `trackside_host_${name}`)?.points ?? [];
  const total = of("memory_bytes").at(-1)?.[4];
  const used = of("memory_available_bytes").map(([, time, low, high, last, , mean = last]) =>
    [0, time, total - high, total - low, total - last, 0, total - mean]);
  const others = [["cached", of("memory_cached_bytes")], ["swap", of("swap_used_bytes")]];
  return [["used", used], ...others].flatMap(([label, points], index) =>
    (points.length ? [{ label, index, points }] : []));
}
