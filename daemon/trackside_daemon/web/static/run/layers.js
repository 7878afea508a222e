// The layers of an observed model: a map by steps, alone or against another run, and the quantiles of one layer.

import { LAYERS_MS, isDue } from "/static/polling.js";
import { getJson, post, query, runPath } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { h, setText, setTitle, ENDED, fillSelect, fold } from "/static/dom.js";
import { number, plural, real, when } from "/static/format.js";

export const ROW = 14; // Height of a layer in the map, in pixels.
const TALLEST = 720;
const TOP = 4;
const PLOT_NAMES = 190; // Width of the names of the layers.
const AXIS = 26;
const BANDS = [["0.05", "0.95", "middle 90 %"], ["0.25", "0.75", "middle 50 %"]];
// Colors from low to high that also differ in lightness (viridis), and around zero for differences.
const RISING = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const AROUND = [[5, 80, 174], [130, 180, 230], [235, 235, 235], [240, 160, 110], [170, 50, 10]];

// Returns { position(value) from 0 to 1, low, high } of a map; logarithmic if positive and far apart.
function scaleOf(rows, around, linear, range) {
  const values = rows.flat().filter(Number.isFinite);
  if (!values.length) return { low: 0, high: 0, log: false, position: () => 0 };
  if (around) {
    const most = values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
    return { low: -most, high: most, log: false, position: (value) => (value / most + 1) / 2 };
  }
  const positive = values.filter((value) => value > 0).sort((a, b) => a - b);
  const low = values.reduce((least, value) => Math.min(least, value), range[0] ?? Infinity);
  const high = values.reduce((most, value) => Math.max(most, value), range[1] ?? -Infinity);
  const [least] = positive;
  if (!linear && low >= 0 && (high > 20 * least || high > 4 * positive[positive.length >> 1])) {
    const [from, span] = [Math.log(least), Math.log(high / least)];
    return { low: least, high, log: true, position: (value) => (value > 0 ? (Math.log(value) - from) / span : 0) };
  }
  return { low, high, log: false, position: (value) => (high > low ? (value - low) / (high - low) : 0.5) };
}

export function color(position, around) {
  const colors = around ? AROUND : RISING;
  const at = Math.min(1, Math.max(0, position)) * (colors.length - 1);
  const first = Math.min(Math.floor(at), colors.length - 2);
  return colors[first].map((from, channel) => Math.round(from + (colors[first + 1][channel] - from) * (at - first)));
}

// Draws a map, and returns { layerAt(y), columnAt(x) } for a pointer. `at` are the places of the columns on the axis.
export function drawMap(canvas, { layers, at, values }, /** @type {MapLook} */ look) {
  const { around = false, linear = false, range = [], chosen, label } = look;
  const row = Math.max(3, Math.min(ROW, Math.floor(TALLEST / Math.max(1, layers.length))));
  const { context, width } = prepare(canvas, layers.length * row + AXIS);
  context.translate(0, TOP); // Half of a name, of rows that are lower than names.
  const scale = scaleOf(values, around, linear, range);
  const image = new ImageData(Math.max(1, at.length), Math.max(1, layers.length));
  values.forEach((line, y) => line.forEach((value, x) => {
    if (Number.isFinite(value)) image.data.set([...color(scale.position(value), around), 255], 4 * (y * at.length + x));
  }));
  const cells = new OffscreenCanvas(image.width, image.height);
  cells.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  const x = axisOf(at, width);
  x.edges.slice(1).forEach((end, column) => {
    const begin = Math.floor(x.edges[column]);
    context.drawImage(cells, column, 0, 1, image.height, begin, 0, Math.max(1, Math.floor(end) - begin),
      layers.length * row);
  });
  const every = Math.ceil(11 / row); // Names that fit.
  const marked = layers.indexOf(chosen);
  layers.forEach((name, y) => {
    // The name of the chosen layer is there.
    const hidden = marked >= 0 && y !== marked && Math.abs(y - marked) < every;
    if ((y % every === 0 && !hidden) || name === chosen) context.fillText(shortened(context, name), 0, (y + 0.5) * row);
    if (name === chosen) context.strokeRect(PLOT_NAMES + 0.5, y * row + 0.5, width - PLOT_NAMES - 1, row - 1);
  });
  drawAxis(context, at, x, layers.length * row, label);
  const columnAt = (place) =>
    (place < PLOT_NAMES ? undefined : x.edges.findIndex((edge, column) => column > 0 && place < edge) - 1);
  return { scale, layerAt: (y) => layers[Math.floor((y - TOP) / row)], columnAt };
}

// Returns { edges, middle(column), width }: the pixels of columns at these places, each reaching half-way to the next.
export function axisOf(at, width) {
  const halves = at.slice(1).map((place, column) => (place + at[column]) / 2);
  const [first, last] = [at[0], at.at(-1)];
  const bounds = at.length > 1
    ? [2 * first - halves[0], ...halves, 2 * last - halves.at(-1)] : [first - 0.5, first + 0.5];
  const pixel = (place) => PLOT_NAMES + ((place - bounds[0]) / (bounds.at(-1) - bounds[0] || 1)) * (width - PLOT_NAMES);
  return { edges: at.length ? bounds.map(pixel) : [], middle: (column) => pixel(at[column]), width };
}

// The quantiles of a layer as lines of a chart: bands around its median; of a head of attention, a line of one value.
function bandLines({ steps, times, quantiles, columns }, value) {
  const lines = (low, middle, high) => steps.map((step, at) =>
    [step, times[at], low[at], high[at], middle[at], 0, middle[at]]).filter(([, , , , last]) => Number.isFinite(last));
  const median = quantiles["0.5"] ?? [];
  if (median.some(Number.isFinite)) return BANDS.map(([low, high, label], index) =>
    ({ label, index, points: lines(quantiles[low], median, quantiles[high]) }));
  const values = columns.map((item) => item[value]);
  return [{ label: value, index: 0, points: lines(values, values, values) }];
}

function prepare(canvas, height) {
  const width = Math.max(320, canvas.parentElement.clientWidth);
  const ratio = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const styles = getComputedStyle(canvas);
  context.font = `11px ${styles.fontFamily}`;
  context.textBaseline = "middle";
  context.fillStyle = context.strokeStyle = styles.getPropertyValue("--ink");
  return { context, width };
}

function shortened(context, name) {
  if (context.measureText(name).width <= PLOT_NAMES - 8) return name;
  let end = name;
  // The end tells layers apart.
  while (end.length > 1 && context.measureText(`…${end}`).width > PLOT_NAMES - 8) end = end.slice(1);
  return `…${end}`;
}

function drawAxis(context, at, { edges, middle, width }, top, label) {
  const half = (PLOT_NAMES + width) / 2;
  const center = edges.findIndex((edge, column) => column > 0 && half < edge) - 1;
  context.textBaseline = "top";
  for (const column of new Set(at.length ? [0, Math.max(0, center), at.length - 1] : [])) {
    const written = label(at[column]);
    const wide = context.measureText(written).width;
    context.fillText(written, Math.min(Math.max(PLOT_NAMES, middle(column) - wide / 2), width - wide), top + 6);
  }
}

const POINTS = 300;
const OTHERS = 50; // Runs to compare with.
const NAMES = { update_ratio: "update ratio", nonfinite: "share of NaN and infinite", zeros: "share of zeros",
  saturated: "share of saturated" };
const SHARES = new Set(["zeros", "nonfinite", "saturated", "entropy", "mean"]); // Differences, not ratios.

export class Layers {
  constructor(/** @type {Run} */ run, /** @type {RunSelection} */ selection, signal) {
    this.id = run.id;
    this.name = run.name;
    this.selection = selection;
    this.signal = signal;
    const reload = () => {
      this.changed = true;
      setText(this.reading, "");
      this.#load();
    };
    this.kind = h("select", { onchange: reload });
    this.value = h("select", { onchange: reload });
    this.other = h("select", { onchange: reload }, h("option", { value: "" }, "no other run"));
    const labels = [["Of", this.kind], ["Value", this.value], ["Difference from", this.other]];
    this.canvas = h("canvas.run-map", { role: "img", tabindex: "0", onclick: (event) => this.#choose(event),
      onmousemove: (event) => this.#point(event) });
    this.reading = h("p.quiet", { role: "status" });
    this.legend = h("span.run-map-legend");
    this.bands = new Chart({ title: "", load: async () => this.lines ?? [] }, signal);
    this.layer = h("select", { onchange: () => this.#show(this.layer.value) });
    this.count = h("span.quiet");
    this.record = h("button.small.needs-write", { hidden: true, onclick: () => this.#record() }, "Record 100 steps");
    const bar = h("div.tools", {}, labels.map(([text, field]) => h("label", {}, text, field)),
      h("label", {}, "Layer", this.layer), this.legend, this.record);
    this.heads = h("canvas.run-map", { role: "img" });
    this.grid = h("div", { hidden: true }, h("h3", {}, "Heads at the last step"), this.heads);
    this.one = h("div", { hidden: true }, this.bands.root);
    const body = [bar, h("div", {}, this.canvas), this.reading, this.grid, this.one];
    this.root = fold("Layers", { hidden: true, ontoggle: () => this.loadedAt && this.#load() }, [this.count], body);
    signal.addEventListener("abort", () => this.resize?.disconnect());
  }

  update(/** @type {Run} */ run) {
    const due = !this.loadedAt || (!this.ended && isDue(this.loadedAt, LAYERS_MS));
    this.ended = ENDED.has(run.state) && Boolean(this.loadedAt);
    this.record.hidden = ENDED.has(run.state);
    if (due) this.#load();
  }

  // Begins a capture, for which the run measures its layers more often.
  async #record() {
    try {
      await post(`${runPath(this.id)}/captures`, { kind: "layers", trigger: "person" });
      setText(this.reading, "The next 100 steps are measured more often; the capture is in the list of captures.");
    } catch (problem) {
      setText(this.reading, problem.message);
    }
  }

  // Applies changes of the charts' settings.
  set(changes) {
    if ("from" in changes) this.#load();
  }

  async #load() {
    this.due = this.loading;
    if (this.loading) return;
    this.loading = true;
    this.changed = false;
    try {
      const found = await this.#fetch(this.id);
      this.root.hidden = !Object.keys(found.kinds).length;
      this.loadedAt = performance.now();
      // What was chosen meanwhile is loaded next, and must not be set back.
      if (!this.root.hidden && this.root.open && !this.changed) await this.#render(found);
    } catch (problem) {
      if (!this.signal.aborted) setText(this.count, problem.message);
    }
    this.loading = false;
    if (this.due && !this.signal.aborted) await this.#load();
  }

  #fetch(run, window = /** @type {object} */ (this.#window())) {
    const value = this.kind.value === this.shownKind ? this.value.value : "";
    return getJson(`${runPath(run)}/layers?${query({ kind: this.kind.value, value, ...window })}`, this.signal);
  }

  // The axis of the charts, and the part of it to which they are zoomed.
  #window() {
    const { by, from, to } = this.selection;
    return { by, from, to, points: POINTS };
  }

  // Places of columns on the axis of the charts, and how they are written.
  #axis({ steps, times }) {
    return this.selection.by === "time" ? { at: times, label: when } : { at: steps, label: (step) => `step ${step}` };
  }

  async #render(found) {
    const titleOf = (name) => NAMES[name] ?? (name || "none");
    fillSelect(this.kind, Object.keys(found.kinds), titleOf, found.kind);
    fillSelect(this.value, found.kinds[found.kind], titleOf, found.value);
    const chosen = found.layers.includes(this.chosen) ? this.chosen : "";
    fillSelect(this.layer, ["", ...found.layers], titleOf, chosen);
    this.shownKind = found.kind;
    if (!this.others) await this.#loadOthers();
    this.around = Boolean(this.other.value);
    this.map = { ...found, values: found.values.map((row) => row.map(real)) };
    if (this.around) this.map.values = difference(this.map,
      await this.#fetch(this.other.value, { from: found.steps[0], to: found.steps.at(-1), points: POINTS }));
    const layers = plural(found.layers.length, found.kind === "attention" ? "head" : "layer");
    const sizes = `${layers}, ${plural(found.steps.length, "column")}`;
    setText(this.count, found.steps.length ? sizes : "no step in this zoom was measured");
    this.#draw();
    if (this.chosen) await this.#show(this.chosen);
  }

  async #loadOthers() {
    this.others = (await getJson(`runs?${query({ limit: OTHERS })}`, this.signal)).runs.filter((run) =>
      run.id !== this.id);
    this.other.append(...this.others.map((run) =>
      h("option", { value: run.id }, run.name === this.name ? `${run.name} ${run.id.slice(0, 8)}` : run.name)));
    this.resize = new ResizeObserver(() => this.map && this.#draw());
    this.resize.observe(this.root);
  }

  #draw() {
    const axis = this.#axis(this.map);
    this.drawn = drawMap(this.canvas, { ...this.map, ...axis },
      { ...axis, around: this.around, linear: SHARES.has(this.map.value), chosen: this.chosen });
    const { low, high, log } = this.drawn.scale;
    const what = this.around
      ? `${this.#valueName()}, ${SHARES.has(this.map.value) ? "difference" : "log2 of the ratio"}` : this.#valueName();
    this.canvas.setAttribute("aria-label",
      `${what} of ${plural(this.map.layers.length, "layer")} from ${number(low, 3)} to ${number(high, 3)}`);
    const stops = [0, 0.25, 0.5, 0.75, 1].map((at) => `rgb(${color(at, this.around).join(" ")})`);
    const bar = h("span.run-map-scale");
    bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    this.#drawHeads();
    this.legend.replaceChildren(number(low, 3), bar, number(high, 3), log ? " (logarithmic)" : "");
  }

  // The heads of attention as a grid: layers by heads.
  #drawHeads() {
    this.grid.hidden = this.map.kind !== "attention";
    if (this.grid.hidden) return;
    const grid = headGrid(this.map);
    drawMap(this.heads, grid,
      { around: this.around, linear: SHARES.has(this.map.value), label: (head) => `head ${head}` });
    this.heads.setAttribute("aria-label",
      `${this.#valueName()} of ${plural(grid.at.length, "head")} in ${plural(grid.layers.length, "layer")}`);
  }

  #valueName() {
    return NAMES[this.map.value] ?? this.map.value;
  }

  #point(event) {
    const [layer, column] = this.#under(event);
    const value = this.map.values[this.map.layers.indexOf(layer)]?.[column];
    const time = this.selection.by === "time" ? `, ${when(this.map.times[column])}` : "";
    setText(this.reading, layer && column in this.map.steps
      ? `${layer}, step ${this.map.steps[column]}${time}: ${this.#valueName()} ${number(value) || "not measured"}`
      : "");
  }

  #choose(event) {
    const [layer] = this.#under(event);
    if (layer) this.#show(layer);
  }

  #under(event) {
    const box = this.canvas.getBoundingClientRect();
    return [this.drawn.layerAt(event.clientY - box.top), this.drawn.columnAt(event.clientX - box.left)];
  }

  async #show(layer) {
    this.chosen = layer || undefined;
    this.layer.value = layer;
    this.one.hidden = !this.map.layers.includes(layer);
    this.#draw();
    if (this.one.hidden) return;
    try {
      const search = query({ kind: this.map.kind, ...this.#window() });
      const found = await getJson(`${runPath(this.id)}/layers/${encodeURIComponent(layer)}?${search}`, this.signal);
      const text = found.kind === "attention"
        ? this.#valueName() : `${found.kind}: median, and the middle 50 % and 90 %`;
      setTitle(this.bands.heading, `${layer}, ${text}`);
      this.lines = bandLines(found, this.map.value);
      this.bands.set({ by: this.selection.by });
      this.bands.reload();
    } catch (problem) {
      if (!this.signal.aborted) setTitle(this.bands.heading, problem.message);
    }
  }
}

// Returns the last column of a map of heads, LAYER/HEAD, as a map of layers by heads.
function headGrid(map) {
  const places = map.layers.map((name) =>
    [name.slice(0, name.lastIndexOf("/")), Number(name.slice(name.lastIndexOf("/") + 1))]);
  const layers = [...new Set(places.map(([layer]) => layer))];
  const heads = [...new Set(places.map(([, head]) => head))].sort((a, b) => a - b);
  const values = layers.map((layer) =>
    heads.map((head) => map.values[places.findIndex(([of, at]) => of === layer && at === head)]?.at(-1)));
  return { layers, at: heads, values };
}

// Returns the values of a map against those of another at the nearest steps: differences, or logarithms of ratios.
export function difference(map, other) {
  const nearest = map.steps.map((step) => other.steps.reduce((best, at, index) =>
    (Math.abs(at - step) < Math.abs(other.steps[best] - step) ? index : best), 0));
  const apart = SHARES.has(map.value) ? (a, b) => a - b : (a, b) => Math.log2(a / b);
  return map.values.map((row, y) => {
    const against = other.values[other.layers.indexOf(map.layers[y])];
    return row.map((value, x) => (against ? apart(value, real(against[nearest[x]])) : undefined));
  });
}
