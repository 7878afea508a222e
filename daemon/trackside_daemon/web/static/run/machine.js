// The GPUs and the host of the daemon while a run goes on: always over time, for they know no steps.

import { ask, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { h, say } from "/static/dom.js";
import { bytes, number, percent, real } from "/static/words.js";

const PACE = 10_000; // Milliseconds from one sample of the machine to the next.
const unit = (name) => (value) => (real(value) === undefined ? "" : `${number(value, 4)} ${name}`);

const GPU = [
  { title: "GPU utilization", key: "trackside_gpu_utilization_ratio", tell: (value) => percent(value), range: [0, 1] },
  { title: "GPU memory used", key: "trackside_gpu_memory_used_bytes", tell: bytes, binary: true, range: [0] },
  { title: "GPU power", key: "trackside_gpu_power_watts", tell: unit("W"), range: [0] },
  { title: "GPU temperature", key: "trackside_gpu_temperature_celsius", tell: unit("°C") },
];
const MEMORY = ["trackside_host_memory_bytes", "trackside_host_memory_available_bytes"];
const HOST = [
  { title: "Host CPU", keys: ["trackside_host_cpu_seconds_total"], tell: (value) => percent(value), range: [0, 1], made: busy },
  { title: "Host memory used", keys: MEMORY, tell: bytes, binary: true, range: [0], made: used },
];

export class Machine {
  constructor(run, chosen, zoomed, signal) {
    Object.assign(this, { id: run.id, chosen, gpus: undefined, loaded: performance.now() });
    this.charts = [...GPU, ...HOST].map((one) => this.#chart(one, zoomed, signal));
    this.name = h("h2", {}, "Machine");
    this.under = h("span.quiet", {}, "over time");
    this.elsewhere = h("p.quiet", { hidden: true });
    this.drawn = h("div.charts", {}, this.charts.map((one) => one.root));
    this.root = h("details.run-section", { open: true }, h("summary", {}, this.name, this.under), this.elsewhere, this.drawn);
  }

  set(changes) {
    const look = {};
    if (changes.marks) look.marks = changes.marks;
    if ("by" in changes) [look.from, look.to] = [undefined, undefined];
    if (this.chosen.by === "time" && "from" in changes) [look.from, look.to] = [changes.from, changes.to];
    for (const chart of this.charts) if (Object.keys(look).length) chart.set(look);
  }

  // Which GPUs the run has is known while it lives.
  told(overview, run) {
    const own = overview.gpus.filter((gpu) => gpu.ranks.some((one) => one.run === this.id)).map((gpu) => gpu.gpu);
    const other = own.length > 0 && own.join() !== this.gpus?.join();
    if (own.length) this.gpus = own;
    this.#where(overview.host.name, run.attempt_list, overview.gpus.length);
    const live = overview.runs.some((one) => one.id === this.id);
    if (!other && !(live && performance.now() - this.loaded > PACE)) return;
    this.loaded = performance.now();
    for (const chart of this.charts) chart.refresh();
  }

  // The daemon knows its own machine alone, which need not be the run's; where its GPUs are the run's, it is.
  #where(name, attempts, gpus) {
    const attempt = attempts.find((one) => one.attempt === this.chosen.attempt) ?? attempts.at(-1);
    const other = name && attempt?.host && attempt.host !== name && !this.gpus;
    say(this.name, name ? `The daemon's machine, ${name}` : "The daemon's machine");
    say(this.under, other ? "" : ["over time", gpus > 0 && !this.gpus && "all GPUs of this machine"].filter(Boolean).join(" · "));
    say(this.elsewhere, other ? `The run is on ${attempt.host}, of which this daemon knows nothing.` : "");
    this.elsewhere.hidden = !other;
    this.drawn.hidden = Boolean(other);
  }

  #chart({ title, key, keys = [key], made, ...look }, zoomed, signal) {
    const { from, to } = this.chosen.by === "time" ? this.chosen : {};
    const load = async ({ from: begin, to: end, points, signal: mine }) => {
      const asked = query({ run: this.id, key: keys, by: "time", from: begin, to: end, points });
      const { series } = await ask(`series?${asked}`, { signal: mine });
      return made ? made(series) : this.#own(series);
    };
    // What is zoomed here is the window of all only where all are over time.
    const told = (begin, end) => this.chosen.by === "time" && zoomed(begin, end);
    return new Chart({ title, by: "time", from, to, load, zoomed: told, sync: "run-machine", ...look }, signal);
  }

  #own(series) {
    return gpuLines(series.filter(({ key }) => (!this.gpus || this.gpus.includes(label(key, "gpu"))) && (label(key, "sensor") ?? "gpu") === "gpu"));
  }
}

// A line of each GPU: by its number, and by its id too where another had the number before.
export function gpuLines(series) {
  const known = series.filter((one) => one.points.length).map(({ key, points }) => ({ gpu: label(key, "gpu"), uuid: label(key, "uuid"), points }));
  return known.map(({ gpu, uuid, points }, place) => {
    const alone = known.filter((one) => one.gpu === gpu).length === 1;
    return { label: alone ? `GPU ${gpu}` : `GPU ${gpu}, ${uuid}`, place: alone && Number.isInteger(Number(gpu)) ? Number(gpu) : place, points };
  });
}

function label(key, name) {
  return new RegExp(`[{,]${name}="([^"]*)"`).exec(key)?.[1];
}

// The part of its time that the host computed, from counters of seconds by mode.
export function busy(series) {
  const modes = series.filter((one) => one.points.length);
  if (!modes.length) return [];
  const idle = new Set(["idle", "iowait"]);
  const [first] = modes;
  const points = first.points.slice(1).flatMap((point, place) => {
    const grown = modes.map((one) => (one.points[place + 1]?.[4] ?? NaN) - (one.points[place]?.[4] ?? NaN));
    const all = grown.reduce((one, other) => one + other, 0);
    const rest = grown.filter((_, mode) => idle.has(label(modes[mode].key, "mode"))).reduce((one, other) => one + other, 0);
    const ratio = 1 - rest / all;
    return all > 0 && ratio >= 0 ? [[0, point[1], ratio, ratio, ratio]] : [];
  });
  return [{ label: "", place: 0, points }];
}

export function used(series) {
  const all = series.find((one) => one.key === MEMORY[0])?.points ?? [];
  const free = series.find((one) => one.key === MEMORY[1])?.points ?? [];
  const total = all.at(-1)?.[4];
  if (total === undefined) return [];
  return [{ label: "", place: 0, points: free.map(([step, time, min, max, last]) => [step, time, total - max, total - min, total - last]) }];
}
