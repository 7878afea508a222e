// The charts of the host and its GPUs over time, also those of a run: up to 30 days, with runs and alerts.

import { MACHINE_MS, SYSTEM_MS, isDue, later } from "/static/polling.js";
import { oneOf } from "/static/address.js";
import { getJson, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { zoomReset } from "/static/charts/interaction.js";
import { h, choices, setText } from "/static/dom.js";
import { bytes, number, percent, when, withUnit } from "/static/format.js";
import { labels } from "/static/picker.js";
import { chartMarks } from "/static/run/marks.js";

const SPANS = { 300: "5 minutes", 900: "15 minutes", 3600: "1 hour", 86400: "1 day", 604800: "1 week",
  2592000: "30 days" };
const RECENT = 3600; // Seconds that the daemon has in memory.
const MOST_MARKS = 500;
const MOST_CORES = 16; // With more, their range is shown.
const HOST = "trackside_host_";
const GPU = "trackside_gpu_";
const rate = (value) => (Number.isFinite(value) ? `${bytes(value)}/s` : "");

const PRESSURES = Object.fromEntries(
  ["cpu", "io", "memory"].map((name) => [`pressure_${name}_waiting_seconds_total`, name]));

export const HOST_CHARTS = [
  { title: "CPU", keys: [`${HOST}cpu_seconds_total`], format: (value) => percent(value), range: [0, 1], lines: cpu },
  { title: "CPU per core", keys: [`${HOST}cpu_core_busy_ratio`], format: (value) => percent(value), range: [0, 1],
    lines: cores },
  { title: "Memory", keys: ["memory_bytes", "memory_available_bytes", "memory_cached_bytes", "swap_used_bytes"]
    .map((name) => HOST + name), format: bytes, binary: true, range: [0], lines: memoryLines },
  rates("Disk", { disk_read_bytes_total: "read", disk_written_bytes_total: "written" }, { format: rate, binary: true }),
  rates("Network", { network_receive_bytes_total: "in", network_transmit_bytes_total: "out" },
    { format: rate, binary: true }),
  rates("Pressure: time in which tasks waited", PRESSURES, { format: (value) => percent(Math.min(1, value)) }),
];
/** @type {[string, object][]} */
const GPU_UNITS = [
  ["_ratio", { format: (value) => percent(value), range: [0, 1] }],
  ["_bytes", { format: bytes, range: [0], binary: true }],
  ["_bytes_per_second", { format: rate, range: [0], binary: true }],
  ["_hertz", { format: (value) => withUnit(value, "Hz"), range: [0] }],
  ["_watts", { format: (value) => withUnit(value, "W"), range: [0] }],
  ["_celsius", { format: (value) => `${number(value, 4)} °C` }],
];
const HEAT = "temperature_celsius";
export const GPU_CHARTS = ["utilization_ratio", "memory_used_bytes", "power_watts", HEAT];

// `prefix` is empty for a family of another program.
export function gpuChart(name, prefix = GPU) {
  const perSecond = name.endsWith("_total") ? "/s" : "";
  const unit = name.replace(/_bytes_total$/, "_bytes_per_second").replace(/_total$/, "");
  const [, look] = GPU_UNITS.find(([end]) => unit.endsWith(end)) ?? [];
  const plain = { format: (value) => `${number(value, 4)}${perSecond}`, range: [0] };
  const title = name.replace(/_(total|ratio|bytes|watts|celsius|hertz)$/, "").replaceAll("_", " ");
  return { title: prefix ? `GPU ${title}` : title, keys: [prefix + name], lines: gpus, ...(look ?? plain) };
}

export class OverTime {
  constructor(/** @type {Address} */ address) {
    this.signal = address.signal;
    this.set = address.set;
    this.seconds = Number(oneOf(SPANS, address.query.get("span"), 900));
    this.chosen = address.query.getAll("gpu");
    this.charts = HOST_CHARTS.map((item) => this.#chart(item));
    this.gpuCharts = new Map();
    this.reset = zoomReset(() => this.#zoom());
    const span = h("select", { onchange: () => this.#span(Number(span.value)) }, choices(SPANS, this.seconds));
    this.more = h("select", { onchange: () => this.#add() });
    this.hottest = h("p.quiet", { role: "status" });
    const tools = h("div.tools", {}, h("label", {}, "Last", span),
      this.moreLabel = h("label", { hidden: true }, "More", this.more), this.reset.button);
    this.grid = h("div.charts", {}, this.charts.map((item) => item.root));
    this.root = h("section", { "aria-labelledby": "over-time" },
      h("div.head", {}, h("h2", { id: "over-time" }, "Over time"), tools), this.hottest, this.grid);
    this.#families().catch(() => {}); // The frame reports the outage.
    this.#marks();
  }

  get #all() {
    return [...this.charts, ...this.gpuCharts.values()];
  }

  // Called with each overview; what is older than the last hour comes from the history, and less often.
  update() {
    if (this.window || (this.seconds > RECENT && !isDue(this.loadedAt, MACHINE_MS))) return;
    this.loadedAt = performance.now();
    for (const chart of this.#all) chart.refresh();
  }

  // The runs as bands, the alerts, and which GPU was hottest.
  async #marks() {
    this.loadedAt = performance.now();
    const limit = query({ limit: MOST_MARKS });
    const heat = query({ key: GPU + HEAT, from: Date.now() / 1000 - this.seconds });
    const [{ runs }, { alerts }, { series }] = await Promise.all([`runs?${limit}`, `alerts?${limit}`, `machine?${heat}`]
      .map((path) => getJson(path, this.signal))).catch(() => [{}, {}, {}]);
    if (!runs) return; // The frame reports the outage.
    const names = labels(runs);
    const bands = runs.map((run, index) => ({ kind: "run", time: run.started, until: run.ended ?? Date.now() / 1000,
      text: names[index], band: index }));
    this.marks = [...bands, ...chartMarks([], alerts)];
    setText(this.hottest, hottest(gpus(series), bands));
    for (const chart of this.#all) chart.set({ marks: this.marks });
  }

  // Charts of the GPUs, and a list of their other families and of other programs' families.
  async #families() {
    const { families } = await getJson("machine", this.signal);
    this.others = families.filter((name) => !name.startsWith("trackside_"));
    const ofGpus = [...families.filter((name) => name.startsWith(GPU)).map((name) => name.slice(GPU.length)),
      ...this.others];
    this.moreLabel.hidden = !ofGpus.length;
    for (const name of [...GPU_CHARTS, ...this.chosen]) if (ofGpus.includes(name) && !this.gpuCharts.has(name))
      this.#addGpuChart(name);
    this.more.replaceChildren(h("option", { value: "" }, "choose…"), ...ofGpus.filter((name) =>
      !this.gpuCharts.has(name)).map((name) => h("option", { value: name }, name.replaceAll("_", " "))));
    if (!families.length) later(SYSTEM_MS, () => this.signal.aborted || this.#families().catch(() => {}));
  }

  #add() {
    const name = this.more.value;
    if (!name) return;
    this.chosen = [...this.chosen, name];
    this.set({ gpu: this.chosen });
    this.#addGpuChart(name);
    this.more.selectedOptions[0].remove();
    this.more.value = "";
    this.gpuCharts.get(name).root.scrollIntoView({ block: "nearest" });
  }

  #addGpuChart(name) {
    const chart = this.#chart(gpuChart(name, this.others.includes(name) ? "" : GPU));
    this.gpuCharts.set(name, chart);
    this.grid.append(chart.root);
  }

  #chart({ title, keys, lines, ...settings }) {
    const load = async ({ from, to, points, signal }) => {
      const begin = from ?? Date.now() / 1000 - this.seconds;
      const { series } = await getJson(`machine?${query({ key: keys, from: begin, to, points })}`, signal);
      const found = lines(series);
      chart.root.hidden = !found.length && from === undefined && keys[0] === `${HOST}cpu_core_busy_ratio`;
      return found;
    };
    const chart = new Chart({ title, by: "time", load, onZoom: (from, to) => this.#zoom(from, to), sync: "system",
      marks: this.marks, ...settings }, this.signal);
    return chart;
  }

  #span(seconds) {
    this.seconds = seconds;
    this.set({ span: seconds });
    this.#zoom();
    this.#marks();
    for (const chart of this.#all) chart.reload();
  }

  #zoom(from, to) {
    this.window = from === undefined ? undefined : [from, to];
    this.reset.update(from, to);
    for (const chart of this.#all) chart.set({ from, to });
  }
}

// Returns which GPU was hottest, when, and during which runs.
export function hottest(lines, runs) {
  const all = lines.flatMap(({ label, points }) => points.map((point) => ({ label, time: point[1], heat: point[3] })));
  const [most] = all.sort((a, b) => b.heat - a.heat);
  if (!most) return "";
  const during = runs.filter(({ time, until }) => time <= most.time && most.time <= until).map(({ text }) => text);
  if (during.length > 3) during.splice(2, Infinity, `${during.length - 2} more runs`);
  return [`Hottest: ${most.label}, ${number(most.heat, 3)} °C, ${when(most.time)}`, ...during].join(", ");
}

const family = (item) => item.key.split("{")[0];

export function labelValue(key, name) {
  return new RegExp(`[{,]${name}="([^"]*)"`).exec(key)?.[1];
}

// The share of time that the CPUs were busy, from seconds by mode.
function cpu(series) {
  const [first] = series;
  if (!first) return [];
  const byTime = series.map((item) => new Map(item.points.map((point) => [point[1], point[6]])));
  const idle = series.map((item) => ["idle", "iowait"].includes(labelValue(item.key, "mode")));
  const points = first.points.map(([, time]) => {
    const values = byTime.map((map) => map.get(time) ?? 0);
    const all = values.reduce((sum, value) => sum + value, 0);
    const busy = all > 0 ? 1 - values.reduce((sum, value, index) => sum + (idle[index] ? value : 0), 0) / all : NaN;
    return [0, time, busy, busy, busy];
  });
  return [{ label: "", index: 0, points }];
}

function cores(series) {
  const lines = series.map((item) =>
    ({ label: `CPU ${labelValue(item.key, "cpu")}`, index: Number(labelValue(item.key, "cpu")), points: item.points }));
  if (lines.length <= MOST_CORES) return lines.length > 1 ? lines : [];
  const points = lines[0].points.map(([, time], place) => {
    const values = lines.map((line) => line.points[place]).filter(Boolean);
    const mean = values.reduce((sum, point) => sum + point[6], 0) / values.length;
    return [0, time, Math.min(...values.map((point) => point[2])), Math.max(...values.map((point) => point[3])), mean,
      0, mean];
  });
  return [{ label: `${lines.length} cores: mean, lowest and highest`, index: 0, points }];
}

// Returns a chart of families by their label, of each the sum of its series but that of the loopback device.
function rates(title, families, look) {
  const names = Object.fromEntries(Object.entries(families).map(([name, label]) => [HOST + name, label]));
  const lines = (series) => totals(series.filter(({ key }) => labelValue(key, "device") !== "lo"), names);
  return { title, keys: Object.keys(names), range: [0], lines, ...look };
}

// One line per family: the sum of its series.
function totals(series, names) {
  return Object.entries(names).flatMap(([name, label], index) => {
    const sums = new Map();
    for (const item of series.filter((each) => family(each) === name)) {
      for (const [, time, low, high, last, , mean] of item.points) {
        const sum = sums.get(time) ?? [0, time, 0, 0, 0, 0, 0];
        sums.set(time, [0, time, sum[2] + low, sum[3] + high, sum[4] + last, 0, sum[6] + mean]);
      }
    }
    return sums.size ? [{ label, index, points: [...sums.values()].sort((a, b) => a[1] - b[1]) }] : [];
  });
}

// One line per GPU; with further labels, one per value of these.
function gpus(series) {
  const all = series.map(({ key }) => labelValue(key, "gpu"));
  if (all.every(Boolean) && new Set(all).size === series.length) return gpuLines(series);
  return series.map(({ key, points }, index) => {
    const more = [...key.matchAll(/[{,](\w+)="([^"]*)"/g)].filter(([, name]) => !["gpu", "uuid"].includes(name))
      .map(([, , value]) => value);
    return { label: [all[index] && `GPU ${all[index]}`, ...more].filter(Boolean).join(" "), index, points };
  });
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
