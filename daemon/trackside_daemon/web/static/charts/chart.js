// One chart: lines over steps or time, loaded when it is visible, with as many points as it has pixels.

import { onThemeChange } from "/static/charts/colors.js";
import { pointsByTime, toColumns, joinTables, markPosition, smoothed } from "/static/charts/lines.js";
import { Legend } from "/static/charts/legend.js";
import { options, valuesAt } from "/static/charts/plot.js";
import { chartImage, save } from "/static/charts/image.js";
import { attachTouch, attachWheelPan, handleKey, startPan } from "/static/charts/interaction.js";
import { h, setText, svg } from "/static/dom.js";
import { number, span, when } from "/static/format.js";

const RELOAD_MS = 2000; // Interval of automatic reloads; all charts reload on the same beat.
const TOLERANCE_MS = 100; // Lateness that still counts as on the beat.
const MAX_BACKOFF = 5; // After repeated failures a load waits at most 2 ** MAX_BACKOFF beats.
const MAX_LINES = 100;
const HEIGHT = 220;
const MAX_TIPS = 4;

const visibilityObserver = new IntersectionObserver((entries) => entries.forEach((item) => item.target.onVisibility(item.isIntersecting)), { rootMargin: "150px" });
const sizeObserver = new ResizeObserver((entries) => entries.forEach((item) => item.target.onResize()));

const ICONS = {
  full: "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4",
  png: "M8 2v8M4.5 6.5 8 10l3.5-3.5M2 13.5h12",
};

export class Chart {
  // `by` is step, time, or relative: seconds since a start, in place of the points' times. With `axis`, { name, splits,
  // label(x) }, other quantities are in their place.
  // `load({ by, from, to, points, signal, isReload })` resolves to [{ label, index, points }] with distinct labels; `isReload`
  // is true for automatic reloads. `format` formats values. `range` is the minimum range of the axis. `binary` uses powers
  // of two. Charts with the same `sync` share their cursor. `reduceHint` suggests how to select fewer lines.
  constructor({ title, by = "step", log = false, smooth = 0, load, marks = [], onZoom = () => {}, ...more }, signal) {
    this.lines = [];
    this.view = { format: number, by, log, smooth, drawn: [], marks: [], height: HEIGHT, width: 0, window: () => this.#window(), ...more };
    Object.assign(this, { title, load, onZoom, signal, allMarks: marks, from: more.from, to: more.to, hidden: new Set(), failed: 0 });
    this.#build();
    this.root.onVisibility = (now) => this.#visibilityChanged(now);
    this.plot.onResize = () => this.#resized();
    visibilityObserver.observe(this.root);
    sizeObserver.observe(this.plot);
    onThemeChange(() => this.u?.redraw(), signal);
    document.addEventListener("visibilitychange", () => this.#loadIfDue(), { signal });
    signal?.addEventListener("abort", () => this.#destroy());
  }

  // Changes settings; `by`, `from` and `to` load new data.
  set(changes) {
    const { from, to, marks, ...rest } = changes;
    const axisChanged = rest.by !== undefined && rest.by !== this.view.by;
    const windowChanged = "from" in changes || "to" in changes;
    const isReload = axisChanged || (windowChanged && (from !== this.from || to !== this.to));
    if (marks) this.allMarks = marks;
    if (windowChanged || axisChanged) [this.from, this.to] = [from, to];
    Object.assign(this.view, rest);
    if (axisChanged) this.#setLines([]);
    else if (this.visible) this.#draw(Object.keys(rest).length > 0);
    else this.needsDraw = true;
    if (isReload) this.reload();
  }

  // Shows another window of the loaded data, before new data is loaded.
  preview(from, to) {
    [this.from, this.to] = [from, to];
    this.u?.setData(this.u.data);
  }

  // Shows or hides a line.
  toggle(label) {
    if (!this.hidden.delete(label)) this.hidden.add(label);
    this.#draw();
  }

  // Loads the same window again.
  refresh() {
    this.needsLoad = true;
    this.#loadIfDue();
  }

  png() {
    return chartImage(this);
  }

  zoom(from, to) {
    if (from !== undefined && this.view.by === "step") [from, to] = [Math.floor(from), Math.max(Math.ceil(to), Math.floor(from) + 1)];
    this.set({ from, to });
    this.onZoom(from, to);
  }

  #build() {
    this.heading = h("h3", {}, this.title);
    this.positionText = h("span.at");
    this.valueText = h("span.now");
    this.reset = h("button.small", { type: "button", hidden: true, onclick: () => this.zoom() }, "Reset zoom");
    const fullButton = icon("full", "Full width", () => fullButton.setAttribute("aria-pressed", String(this.root.classList.toggle("full"))));
    fullButton.setAttribute("aria-pressed", "false");
    this.saveButton = icon("png", "Download as PNG", async () => save(await this.png(), this.title));
    this.saveButton.disabled = true; // Until there is data.
    this.plot = h("div.plot", { tabindex: 0, role: "img", "aria-label": this.title, onkeydown: (event) => handleKey(this, event) });
    this.notice = h("p.note", {}, "Loading…");
    this.tooltip = h("div.tip", { hidden: true, "aria-hidden": "true" });
    this.spoken = h("span.spoken", { role: "status" });
    this.cutNotice = h("small.quiet", { hidden: true });
    this.legend = new Legend(this);
    attachWheelPan(this);
    const frame = h("div.frame", {}, this.plot, this.notice, this.tooltip);
    const head = h("div.head", {}, this.heading, this.positionText, this.valueText, this.reset, fullButton, this.saveButton);
    this.root = h("figure.card.chart", {}, head, frame, this.cutNotice, this.legend.root, this.spoken);
  }

  #visibilityChanged(now) {
    this.visible = now;
    if (now && !this.requestedAt) this.needsLoad = true;
    if (now && this.needsDraw) this.#draw(true);
    this.#loadIfDue();
  }

  #resized() {
    const width = Math.floor(this.plot.clientWidth);
    if (!width || width === this.view.width) return;
    const more = this.requestedAt && width > 1.3 * this.points;
    this.view.width = width;
    this.u?.setSize({ width, height: this.view.height });
    if (more) this.reload();
    else this.#loadIfDue();
  }

  // Loads if something changed, the chart is visible, and no load is running.
  #loadIfDue() {
    clearTimeout(this.timer);
    if (!this.needsLoad || !this.visible || document.hidden || this.loading || this.ended || !this.view.width) return;
    const beats = Math.floor((this.requestedAt + TOLERANCE_MS) / RELOAD_MS) + 2 ** Math.min(this.failed, MAX_BACKOFF);
    const rest = this.requestedAt ? RELOAD_MS * beats - performance.now() : 0;
    if (rest > 0) this.timer = setTimeout(() => this.#loadIfDue(), rest);
    else this.#load();
  }

  // Loads at once and cancels a running load.
  reload() {
    this.loading?.abort();
    this.loading = undefined;
    this.requestedAt = 0;
    this.refresh();
  }

  async #load() {
    const controller = new AbortController();
    this.loading = controller;
    const isReload = this.requestedAt > 0;
    this.needsLoad = false;
    this.requestedAt = performance.now();
    this.points = this.view.width;
    const { from, to, view, points } = this;
    const lines = await this.load({ by: view.by, from, to, points, signal: controller.signal, isReload }).catch((problem) => this.#failed(problem, controller));
    if (this.loading !== controller) return;
    this.loading = undefined;
    this.failed = lines ? 0 : this.failed + 1;
    this.needsLoad ||= !lines;
    if (lines) this.#setLines(lines, "No values in this range.");
    if (lines && from === undefined && to === undefined) this.all = this.#window();
    this.#loadIfDue();
  }

  #failed(problem, controller) {
    if (this.loading !== controller) return;
    setText(this.notice, problem.message);
    this.notice.hidden = false;
  }

  #setLines(lines, empty = "Loading…") {
    this.lines = lines.slice(0, MAX_LINES);
    this.times = undefined;
    this.empty = empty;
    this.cutNotice.hidden = lines.length <= MAX_LINES;
    setText(this.cutNotice, `Showing ${MAX_LINES} of ${lines.length} lines${this.view.reduceHint ? `; ${this.view.reduceHint}` : ""}`);
    this.#draw();
  }

  #draw(rebuild = false) {
    const { view, lines } = this;
    this.needsDraw = false;
    view.drawn = lines.filter((line) => !this.hidden.has(line.label)).map((line) => ({ line, columns: toColumns(line.points, view.by, view.log) }));
    if (view.by === "step" && this.allMarks.some((mark) => !Number.isFinite(mark.step))) this.times ??= pointsByTime(lines);
    view.marks = this.allMarks.map((mark) => ({ ...mark, x: markPosition(mark, view.by, this.times ?? []) })).filter((mark) => mark.x !== undefined);
    const isEmpty = !view.drawn.some(({ columns: own }) => own.last.some((value) => value !== null) || own.nonfinite.length);
    this.notice.hidden = !isEmpty || this.hidden.size > 0;
    setText(this.notice, view.log && lines.some((line) => line.points.length) ? "A log scale needs values above 0, and there are none in this range." : (this.empty ?? "Loading…"));
    this.reset.hidden = this.from === undefined && this.to === undefined;
    this.legend.update();
    this.plot.setAttribute("aria-label", this.#ariaLabel());
    if (view.width && lines.length) this.#plotLines(rebuild);
    else if (this.u) this.#clear();
    this.saveButton.disabled = !this.u;
  }

  #plotLines(rebuild) {
    const { view } = this;
    const drawnLines = view.drawn.map(({ line }) => `${line.label}\n${line.index}`).join("\n\n");
    const data = joinTables(view.drawn.map(({ columns: own }) => [own.x, own.last, ...(view.smooth ? [smoothed(own.last, view.smooth)] : [])]));
    if (rebuild || drawnLines !== this.drawnLines) this.#clear();
    this.drawnLines = drawnLines;
    if (this.u) {
      this.u.setData(data ?? [[]]);
      return;
    }
    const handlers = { onSelect: (from, to) => this.zoom(from, to), onMove: (u) => this.#cursorMoved(u), onPan: (event) => startPan(this, event) };
    this.u = new uPlot(options(view, handlers), data ?? [[]], this.plot);
    attachTouch(this.u);
  }

  #clear() {
    this.u?.destroy();
    this.u = undefined;
  }

  // The range of the axis: the zoomed window, or everything.
  #window() {
    const ends = this.view.drawn.flatMap(({ columns: own }) => (own.x.length ? [own.x[0], own.x.at(-1)] : []));
    const from = this.from ?? Math.min(...ends);
    const to = this.to ?? Math.max(...ends);
    if (!Number.isFinite(from + to)) return [0, 1];
    return from < to ? [from, to] : [from - 1, from + 1];
  }

  #cursorMoved(u) {
    const { left } = u.cursor;
    if (!(left >= 0)) {
      setText(this.positionText, "");
      this.tooltip.hidden = true;
      this.legend.values();
      return;
    }
    const values = valuesAt(this.view.drawn, u.posToVal(left, "x"));
    const nearest = values.find((item) => item.x !== undefined);
    setText(this.positionText, nearest ? this.formatPosition(nearest.x) : "");
    this.legend.values(values);
    const nearMarks = this.view.marks.filter((mark) => Math.abs(u.valToPos(mark.x, "x") - left) <= 6);
    this.#tooltip(u, left, nearMarks.map((mark) => mark.text));
    this.spokenTexts = [nearest && this.formatPosition(nearest.x), ...values.map((item) => this.legend.text(item)), ...nearMarks.map((mark) => mark.text)];
  }

  #tooltip(u, left, texts) {
    const isActive = this.plot.matches(":hover, :focus"); // False for charts that only follow another chart's cursor.
    this.tooltip.hidden = !texts.length || !isActive;
    this.tooltip.replaceChildren(...texts.slice(0, MAX_TIPS).map((text) => h("p", {}, text)), texts.length > MAX_TIPS ? h("p", {}, `and ${texts.length - MAX_TIPS} more`) : "");
    const over = left > u.over.clientWidth / 2;
    this.tooltip.style[over ? "left" : "right"] = "auto";
    this.tooltip.style[over ? "right" : "left"] = `${over ? this.plot.clientWidth - u.over.offsetLeft - left + 8 : u.over.offsetLeft + left + 8}px`;
  }

  formatPosition(x) {
    if (this.view.axis) return `${this.view.axis.name} ${this.view.axis.label(x)}`;
    if (this.view.by === "step") return `step ${x}`;
    return this.view.by === "relative" ? `${span(x)} after start` : when(x);
  }

  #ariaLabel() {
    const names = { step: "step", relative: "time since start" };
    const by = this.view.axis ? "" : ` by ${names[this.view.by] ?? "time"}`;
    const some = this.view.drawn.filter(({ columns: own }) => own.x.length).slice(0, 12);
    const last = some.map(({ line, columns: own }) => `${line.label ?? ""} ${this.view.format(own.raw.at(-1))} at ${this.formatPosition(own.x.at(-1))}`.trim());
    return `${this.title}${by}. ${last.length ? `Last: ${last.join("; ")}.` : "No values."} Arrow keys move the cursor, plus and minus zoom, Home shows all.`;
  }

  #destroy() {
    this.ended = true;
    this.loading?.abort();
    this.loading = undefined;
    clearTimeout(this.timer);
    visibilityObserver.unobserve(this.root);
    sizeObserver.unobserve(this.plot);
    this.#clear();
  }
}

function icon(name, label, onclick) {
  const picture = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
  return h("button.icon", { type: "button", "aria-label": label, title: label, onclick }, picture);
}
