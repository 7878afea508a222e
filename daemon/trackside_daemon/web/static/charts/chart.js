// One chart: lines over steps or time, loaded when it is visible, with as many points as it has pixels.

import { onThemeChange } from "/static/charts/colors.js";
import { isTime, joinTables, markPosition, pointsByTime, stack, toColumns } from "/static/charts/lines.js";
import { Legend, marksText, tooltipContent } from "/static/charts/legend.js";
import { drawSoon, loadSoon } from "/static/charts/draw_queue.js";
import { options, valuesAt } from "/static/charts/plot.js";
import { chartImage } from "/static/charts/image.js";
import { attachTouch, attachWheelPan, handleKey, startPan } from "/static/charts/interaction.js";
import { chartSettings } from "/static/charts/settings.js";
import { smooth, withSurroundings } from "/static/charts/smoothing.js";
import { fileName } from "/static/export/files.js";
import { download, h, setText, setTitle, icon } from "/static/dom.js";
import { number, short, span, when } from "/static/format.js";

const RELOAD_MS = 2000; // Interval of automatic reloads; all charts reload on the same beat.
const TOLERANCE_MS = 100; // Lateness that still counts as on the beat.
const MAX_BACKOFF = 5; // After repeated failures a load waits at most 2 ** MAX_BACKOFF beats.
const MAX_LINES = 100;
const HEIGHT = 220;
const FULL_HEIGHT = 420;
const NEAR = 0.02; // Share of the axis within which a point counts as that at the cursor.
const AXES = { step: "step", relative: "time since start", time: "time" };
const SET_OF_PAGE = ["log", "robust"]; // Settings that a chart can have of its own.

const visibilityObserver = new IntersectionObserver((entries) =>
  entries.forEach((item) => item.target.onVisibility(item.isIntersecting)), { rootMargin: "150px" });
const sizeObserver = new ResizeObserver((entries) => entries.forEach((item) => item.target.onResize()));

export class Chart {
  // A relative axis has seconds since a start in place of the points' times; that of a quantity has it for the steps.
  constructor(/** @type {ChartOptions} */ { title, load, marks = [], own = {}, from, to, ...more }, signal) {
    const { by = "step", log = false, robust = false, onZoom = () => {}, onOwn = () => {}, onNote, ...settings } = more;
    /** @type {Line[]} */
    this.lines = [];
    this.page = { log, robust };
    const plot = { drawn: [], marks: [], width: 0, window: () => this.#window() };
    /** @type {View} */
    this.view = { format: number, by, ...this.page, ...own, ...plot, height: HEIGHT, ...settings };
    this.normalHeight = this.view.height;
    this.title = title;
    this.load = load;
    this.onZoom = onZoom;
    this.onOwn = onOwn;
    this.onNote = onNote;
    this.own = own;
    this.signal = signal;
    this.allMarks = marks;
    this.from = from;
    this.to = to;
    this.hidden = new Set();
    this.failed = 0;
    this.#build();
    this.root.onVisibility = (now) => this.#visibilityChanged(now);
    this.plot.onResize = () => this.#resized();
    visibilityObserver.observe(this.root);
    sizeObserver.observe(this.plot);
    onThemeChange(() => this.u?.redraw(), signal);
    document.addEventListener("visibilitychange", () => this.#loadIfDue(), { signal });
    signal?.addEventListener("abort", () => this.#destroy());
  }

  // Changes settings; `by`, `from` and `to` load new data, and so does smoothing of a part.
  set({ marks = undefined, ...changes }) {
    const { from, to, ...rest } = changes;
    if (!Object.keys(changes).length && !marks?.length && !this.allMarks.length) return; // No marks, as before.
    for (const name of SET_OF_PAGE) {
      if (!(name in rest)) continue;
      this.page[name] = rest[name];
      if (name in this.own) delete rest[name];
    }
    const axisChanged = rest.by !== undefined && rest.by !== this.view.by;
    const windowChanged = "from" in changes || "to" in changes;
    const newSmoothing = "smooth" in rest && this.from !== undefined &&
      (rest.smooth?.span ?? 0) > (this.view.smooth?.span ?? 0);
    const isReload = axisChanged || newSmoothing || (windowChanged && (from !== this.from || to !== this.to));
    if (marks) this.allMarks = marks;
    if (windowChanged || axisChanged) [this.from, this.to] = [from, to];
    Object.assign(this.view, rest);
    this.rebuild ||= Object.keys(rest).length > 0;
    if (axisChanged) this.#setLines([]);
    else if (!this.visible) this.needsDraw = true;
    else if (!isReload || this.#isActive) drawSoon(this); // The other charts are drawn once, when they have their data.
    if (isReload) this.reload();
  }

  // Replaces the settings of this chart alone; those it does not have are the page's.
  setOwn(own) {
    this.own = Object.fromEntries(Object.entries(own).filter(([, value]) => value !== undefined));
    Object.assign(this.view, { low: undefined, high: undefined }, this.page, this.own);
    this.#draw(true);
    this.onOwn(this.own);
  }

  // Shows the chart over the whole width and higher, or as the others.
  setFull(full) {
    this.isFull = full;
    this.root.classList.toggle("full", full);
    this.fullButton.setAttribute("aria-pressed", String(full));
    this.view.height = full ? FULL_HEIGHT : this.normalHeight;
    this.u?.setSize({ width: this.view.width, height: this.view.height });
    this.onOwn(this.own);
  }

  // Called by the queue; returns whether there is a plot.
  drawNow() {
    if (!this.ended) this.#draw(this.rebuild);
    return Boolean(this.u);
  }

  loadNow() {
    if (this.#canLoad) this.#load();
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

  // Dims the lines of other colors than this one; without an index, none.
  emphasize(index) {
    const at = this.view.drawn.findIndex(({ line }) => line.index === index);
    const each = this.view.smooth ? 2 : 1;
    this.u?.setSeries(at < 0 ? null : at * each + each, { focus: true });
  }

  // Has a note written at the cursor, or changed that is there.
  note(event) {
    const { nearest, nearMarks } = this.pointed ?? {};
    if (!this.onNote || !nearest || document.documentElement.dataset.role === "read") return;
    event.preventDefault();
    const origin = this.view.by === "relative" ? this.view.origin : 0;
    this.onNote(nearMarks.find((mark) => mark.note) ?? { step: nearest.step, time: nearest.time + origin });
  }

  // Loads the same window again.
  refresh() {
    this.needsLoad = true;
    this.#loadIfDue();
  }

  get pictureTitle() {
    return [this.view.of, this.heading.textContent].filter(Boolean).join(": ");
  }

  zoom(from, to) {
    if (from !== undefined && this.view.by === "step")
      [from, to] = [Math.floor(from), Math.max(Math.ceil(to), Math.floor(from) + 1)];
    this.set({ from, to });
    this.onZoom(from, to);
  }

  #build() {
    this.heading = h("h3");
    setTitle(this.heading, this.title);
    this.valueText = h("span.now");
    this.fullButton = icon("full", "Full width", () => this.setFull(!this.isFull));
    this.fullButton.setAttribute("aria-pressed", "false");
    this.saveButton = icon("png", "Download as PNG", async () =>
      download(await chartImage(this), fileName({ keys: [], form: "png" }, this.pictureTitle)));
    this.saveButton.disabled = true; // Until there is data.
    this.settings = chartSettings(this, (own) => this.setOwn(own));
    this.plot = h("div.plot",
      { tabindex: 0, role: "img", "aria-label": this.title, onkeydown: (event) => handleKey(this, event),
        oncontextmenu: (event) => this.note(event) });
    this.notice = h("p.note.skeleton", {}, "Loading…");
    this.tooltip = h("div.tip", { hidden: true, "aria-hidden": "true" });
    this.markTip = h("p.mark-tip", { hidden: true, "aria-hidden": "true" });
    this.spoken = h("span.spoken", { role: "status" });
    this.cutNotice = h("small.quiet", { hidden: true });
    this.legend = new Legend(this);
    attachWheelPan(this);
    const frame = h("div.frame", {}, this.plot, this.notice, this.tooltip, this.markTip);
    this.tools = h("span.chart-tools", {}, this.settings.button, this.fullButton, this.saveButton);
    const head = h("div.head", {}, this.heading, this.valueText, this.tools);
    this.root = h("figure.card.chart", {}, head, this.settings.panel, frame, this.cutNotice, this.legend.root,
      this.spoken);
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
    if (!this.#canLoad) return;
    const beats = Math.floor((this.requestedAt + TOLERANCE_MS) / RELOAD_MS) + 2 ** Math.min(this.failed, MAX_BACKOFF);
    const rest = this.requestedAt ? RELOAD_MS * beats - performance.now() : 0;
    if (rest > 0) this.timer = setTimeout(() => this.#loadIfDue(), rest);
    else loadSoon(this);
  }

  get #canLoad() {
    return this.needsLoad && this.visible && !document.hidden && !this.loading && !this.ended && this.view.width > 0;
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
    const lines = await this.load({ by: view.by, from, to, points, signal: controller.signal, isReload })
      .catch((problem) => this.#failed(problem, controller));
    if (this.loading !== controller) return;
    this.loading = undefined;
    this.failed = lines ? 0 : this.failed + 1;
    this.needsLoad ||= !lines;
    if (lines) this.#setLines(lines, "No values in this range.");
    this.isWhole = from === undefined && to === undefined;
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
    setText(this.cutNotice,
      `Showing ${MAX_LINES} of ${lines.length} lines${this.view.reduceHint ? `; ${this.view.reduceHint}` : ""}`);
    drawSoon(this);
  }

  // False for charts that only follow another chart's cursor or zoom.
  get #isActive() {
    return this.plot.matches(":hover, :focus");
  }

  #draw(rebuild = false) {
    const { view, lines } = this;
    this.needsDraw = this.rebuild = false;
    view.drawn = lines.filter((line) => !this.hidden.has(line.label)).map((line) => this.#drawn(line));
    if (view.stacked) stack(view.drawn);
    this.#placeMarks();
    const isEmpty = !view.drawn.some(({ columns: own }) =>
      own.mean.some((value) => value !== null) || own.nonfinite.length);
    this.notice.hidden = !isEmpty || this.hidden.size > 0;
    setText(this.notice, view.log && lines.some((line) => line.points.length)
      ? "A log scale needs values above 0, and there are none in this range." : (this.empty ?? "Loading…"));
    this.notice.classList.toggle("skeleton", this.notice.textContent === "Loading…");
    this.legend.update();
    this.plot.setAttribute("aria-label", this.#ariaLabel());
    if (view.width && lines.some((line) => line.points.length)) this.#plotLines(rebuild);
    else if (this.u) this.#clear();
    this.saveButton.disabled = !this.u;
    if (this.isWhole && this.from === undefined && this.to === undefined) this.all = this.#window();
  }

  // A line with its columns and, if lines are smoothed, its smoothed values.
  #drawn(line) {
    const { by, log, smooth: smoothing } = this.view;
    const columns = toColumns(line.points, by, log);
    if (!smoothing) return { line, columns };
    const axis = isTime(by) ? 1 : 0;
    const [before, , after] = withSurroundings(line.points, line.around ?? [], axis);
    if (!before.length && !after.length) return { line, columns, smoothed: smooth(columns, smoothing) };
    const all = toColumns([...before, ...line.points, ...after], by, log);
    const first = all.x.indexOf(columns.x[0]);
    return { line, columns, smoothed: smooth(all, smoothing).slice(first, first + columns.x.length) };
  }

  #placeMarks() {
    const { view } = this;
    const needsTimes = !isTime(view.by) &&
      this.allMarks.some((mark) => view.by !== "step" || !Number.isFinite(mark.step) || mark.until);
    if (needsTimes) this.times ??= pointsByTime(this.lines);
    const place = (mark) => markPosition({ ...mark, time: mark.time - (view.by === "relative" ? view.origin ?? 0 : 0) },
      view.by, this.times ?? []);
    const placed = this.allMarks.map((mark) =>
      ({ ...mark, x: place(mark), until: mark.until && place({ time: mark.until }) }));
    view.marks = placed.filter((mark) => mark.x !== undefined);
  }

  #plotLines(rebuild) {
    const { view } = this;
    const drawnLines = view.drawn.map(({ line }) => `${line.label}\n${line.index}`).join("\n\n");
    const data = joinTables(
      view.drawn.map(({ columns: own, smoothed }) => [own.x, own.stack ?? own.mean, ...(smoothed ? [smoothed] : [])]));
    view.axisTitle = this.#axisTitle();
    if (rebuild || drawnLines !== this.drawnLines) this.#clear();
    this.drawnLines = drawnLines;
    if (this.u) {
      // Draws at once; without a batch, after the queue has gone on to other charts.
      this.u.batch((u) => u.setData(data ?? [[]]));
      return;
    }
    const handlers = { onSelect: (from, to) => this.zoom(from, to), onMove: (u) => this.#cursorMoved(u),
      onPan: (event) => startPan(this, event) };
    this.u = new uPlot(options(view, handlers), data ?? [[]], (u, init) => {
      this.plot.append(u.root);
      u.batch(init);
    });
    attachTouch(this.u);
  }

  #axisTitle() {
    const { by, byTitle } = this.view;
    return by === "time" ? undefined : AXES[by] ?? byTitle ?? by;
  }

  #clear() {
    this.u?.destroy();
    this.u = undefined;
  }

  // The range of the axis: the zoomed window, or everything.
  /** @returns {[number, number]} */
  #window() {
    const ends = this.view.drawn.flatMap(({ columns: own }) => (own.x.length ? [own.x[0], own.x.at(-1)] : []));
    if (ends.length) ends.push(...this.view.bounds?.() ?? []);
    const from = this.from ?? Math.min(...ends);
    const to = this.to ?? Math.max(...ends);
    if (!Number.isFinite(from + to)) return [0, 1];
    return from < to ? [from, to] : [from - 1, from + 1];
  }

  #cursorMoved(u) {
    const { left } = u.cursor;
    if (!(left >= 0)) {
      this.tooltip.hidden = this.markTip.hidden = true;
      this.legend.values();
      return;
    }
    const values = valuesAt(this.view.drawn, u.posToVal(left, "x"));
    const at = u.posToVal(left, "x");
    const nearest = values.filter((item) => item.x !== undefined)
      .sort((a, b) => Math.abs(a.x - at) - Math.abs(b.x - at))[0];
    this.legend.values(values);
    const nearMarks = this.view.marks.filter((mark) => (mark.band === undefined
      ? Math.abs(u.valToPos(mark.x, "x") - left) <= 6 : mark.x <= at && at <= mark.until));
    this.#tooltip(u, left, nearest, values, nearMarks.map((mark) => mark.text));
    this.pointed = { nearest, values, nearMarks };
  }

  // The texts for screen readers at the cursor. Only the chart with the focus needs them, but all follow its cursor.
  get spokenTexts() {
    const { nearest, values, nearMarks } = this.pointed;
    return [nearest && this.formatPosition(nearest.x), ...values.map((item) => this.legend.text(item)),
      ...nearMarks.map((mark) => mark.text)];
  }

  // The values stand beside the cursor, and the texts of marks below the plot.
  #tooltip(u, left, nearest, values, texts) {
    const isActive = this.#isActive;
    this.tooltip.hidden = !nearest || !isActive;
    this.markTip.hidden = !texts.length || !isActive;
    setText(this.markTip, marksText(texts));
    if (this.tooltip.hidden) return;
    const reach = NEAR * (u.scales.x.max - u.scales.x.min);
    const positions = { positionOf: (x) => this.formatPosition(x), isNear: (x) => Math.abs(x - nearest.x) <= reach };
    this.tooltip.replaceChildren(...tooltipContent(this.formatPosition(nearest.x), values, this.view, positions));
    const over = left > u.over.clientWidth / 2;
    const x = u.over.offsetLeft + left + (over ? -12 - this.tooltip.offsetWidth : 12);
    this.tooltip.style.left = `${Math.max(0, Math.min(x, this.plot.clientWidth - this.tooltip.offsetWidth))}px`;
  }

  formatPosition(x) {
    if (this.view.axis) return `${this.view.axis.name} ${this.view.axis.label(x)}`;
    if (this.view.by === "step") return `step ${x}`;
    if (this.view.by === "relative") return `${span(x)} after start`;
    return this.view.by === "time" ? when(x) : `${short(x)} ${this.view.byTitle ?? this.view.by}`;
  }

  #ariaLabel() {
    const by = this.view.axis ? "" : ` by ${AXES[this.view.by] ?? this.view.byTitle ?? this.view.by}`;
    const some = this.view.drawn.filter(({ columns: own }) => own.x.length).slice(0, 12);
    const last = some.map(({ line, columns: own }) =>
      `${line.label ?? ""} ${this.view.format(own.raw.at(-1))} at ${this.formatPosition(own.x.at(-1))}`.trim());
    const values = last.length ? `Last: ${last.join("; ")}.` : "No values.";
    return `${this.title}${by}. ${values} Arrow keys move the cursor, plus and minus zoom, Home shows all.`;
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
