// One chart: lines over steps or time, which are loaded when it is seen, as many points as it has pixels.

import { whenChanged } from "/static/charts/colors.js";
import { clock, columns, joined, placeOf, smoothed } from "/static/charts/lines.js";
import { Legend } from "/static/charts/legend.js";
import { options, valuesAt } from "/static/charts/plot.js";
import { picture, save } from "/static/charts/picture.js";
import { keys, pan, touch, wheel } from "/static/charts/hands.js";
import { h, say, svg } from "/static/dom.js";
import { number, span, when } from "/static/words.js";

const PACE = 2000; // Milliseconds from one load that was not asked for by a person to the next, a beat of all charts.
const SOON = 100; // Milliseconds after a beat that still count as on it.
const PATIENCE = 5; // A load that fails again and again waits for at most 2 ** PATIENCE beats.
const MOST = 100; // Lines.
const HEIGHT = 220;
const TIPS = 4;

const seen = new IntersectionObserver((entries) => entries.forEach((one) => one.target.seen(one.isIntersecting)), { rootMargin: "150px" });
const sized = new ResizeObserver((entries) => entries.forEach((one) => one.target.sized()));

const ICONS = {
  full: "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4",
  png: "M8 2v8M4.5 6.5 8 10l3.5-3.5M2 13.5h12",
};

export class Chart {
  // `by` is step, time, or relative: seconds since a start, which then stand for the points' times.
  // `load({ by, from, to, points, signal, again })` answers [{ label, place, points }], with labels that differ; `again` is
  // true where nobody waits for it. `tell` writes values; `range` are values that the axis has at least; `binary` counts in
  // 1024; charts of the same `sync` share their cursor; `fewer` says what to do where there are more lines than are drawn.
  constructor({ title, by = "step", log = false, smooth = 0, load, marks = [], zoomed = () => {}, ...more }, signal) {
    this.lines = [];
    this.view = { tell: number, by, log, smooth, drawn: [], marks: [], height: HEIGHT, width: 0, window: () => this.#window(), ...more };
    Object.assign(this, { title, load, zoomed, signal, given: marks, from: more.from, to: more.to, hidden: new Set(), failed: 0 });
    this.#build();
    this.root.seen = (now) => this.#seen(now);
    this.plot.sized = () => this.#sized();
    seen.observe(this.root);
    sized.observe(this.plot);
    whenChanged(() => this.u?.redraw(), signal);
    document.addEventListener("visibilitychange", () => this.#due(), { signal });
    signal?.addEventListener("abort", () => this.#end());
  }

  // Changes what is given; `by`, `from` and `to` load anew.
  set(changes) {
    const { from, to, marks, ...rest } = changes;
    const turned = rest.by !== undefined && rest.by !== this.view.by;
    const moved = "from" in changes || "to" in changes;
    const again = turned || (moved && (from !== this.from || to !== this.to));
    if (marks) this.given = marks;
    if (moved || turned) [this.from, this.to] = [from, to];
    Object.assign(this.view, rest);
    if (turned) this.#take([]);
    else if (this.visible) this.#draw(Object.keys(rest).length > 0);
    else this.undrawn = true;
    if (again) this.reload();
  }

  // Shows another window of what is there, before it is loaded.
  slid(from, to) {
    [this.from, this.to] = [from, to];
    this.u?.setData(this.u.data);
  }

  // Shows or hides a line.
  turn(label) {
    if (!this.hidden.delete(label)) this.hidden.add(label);
    this.#draw();
  }

  // Loads the same window again.
  refresh() {
    this.stale = true;
    this.#due();
  }

  png() {
    return picture(this);
  }

  zoom(from, to) {
    if (from !== undefined && this.view.by === "step") [from, to] = [Math.floor(from), Math.max(Math.ceil(to), Math.floor(from) + 1)];
    this.set({ from, to });
    this.zoomed(from, to);
  }

  #build() {
    this.heading = h("h3", {}, this.title);
    this.at = h("span.at");
    this.now = h("span.now");
    this.reset = h("button.small", { type: "button", hidden: true, onclick: () => this.zoom() }, "Reset zoom");
    const full = icon("full", "Full width", () => full.setAttribute("aria-pressed", String(this.root.classList.toggle("full"))));
    full.setAttribute("aria-pressed", "false");
    this.saving = icon("png", "Download as PNG", async () => save(await this.png(), this.title));
    this.saving.disabled = true; // Until there is something to draw.
    this.plot = h("div.plot", { tabindex: 0, role: "img", "aria-label": this.title, onkeydown: (event) => keys(this, event) });
    this.note = h("p.note", {}, "Loading…");
    this.tip = h("div.tip", { hidden: true, "aria-hidden": "true" });
    this.spoken = h("span.spoken", { role: "status" });
    this.cut = h("small.quiet", { hidden: true });
    this.legend = new Legend(this);
    wheel(this);
    const frame = h("div.frame", {}, this.plot, this.note, this.tip);
    const head = h("div.head", {}, this.heading, this.at, this.now, this.reset, full, this.saving);
    this.root = h("figure.card.chart", {}, head, frame, this.cut, this.legend.root, this.spoken);
  }

  #seen(now) {
    this.visible = now;
    if (now && !this.asked) this.stale = true;
    if (now && this.undrawn) this.#draw(true);
    this.#due();
  }

  #sized() {
    const width = Math.floor(this.plot.clientWidth);
    if (!width || width === this.view.width) return;
    const more = this.asked && width > 1.3 * this.points;
    this.view.width = width;
    this.u?.setSize({ width, height: this.view.height });
    if (more) this.reload();
    else this.#due();
  }

  // Loads when something has changed, it can be seen, and no load is under way.
  #due() {
    clearTimeout(this.timer);
    if (!this.stale || !this.visible || document.hidden || this.loading || this.ended || !this.view.width) return;
    const beats = Math.floor((this.asked + SOON) / PACE) + 2 ** Math.min(this.failed, PATIENCE);
    const rest = this.asked ? PACE * beats - performance.now() : 0;
    if (rest > 0) this.timer = setTimeout(() => this.#due(), rest);
    else this.#load();
  }

  // Loads now, whatever is under way.
  reload() {
    this.loading?.abort();
    this.loading = undefined;
    this.asked = 0;
    this.refresh();
  }

  async #load() {
    const mine = new AbortController();
    this.loading = mine;
    const again = this.asked > 0;
    this.stale = false;
    this.asked = performance.now();
    this.points = this.view.width;
    const { from, to, view, points } = this;
    const lines = await this.load({ by: view.by, from, to, points, signal: mine.signal, again }).catch((problem) => this.#failed(problem, mine));
    if (this.loading !== mine) return;
    this.loading = undefined;
    this.failed = lines ? 0 : this.failed + 1;
    this.stale ||= !lines;
    if (lines) this.#take(lines, "No values here.");
    if (lines && from === undefined && to === undefined) this.all = this.#window();
    this.#due();
  }

  #failed(problem, mine) {
    if (this.loading !== mine) return;
    say(this.note, problem.message);
    this.note.hidden = false;
  }

  #take(lines, empty = "Loading…") {
    this.lines = lines.slice(0, MOST);
    this.times = undefined;
    this.empty = empty;
    this.cut.hidden = lines.length <= MOST;
    say(this.cut, `${MOST} of ${lines.length} lines${this.view.fewer ? `; ${this.view.fewer}` : ""}`);
    this.#draw();
  }

  #draw(anew = false) {
    const { view, lines } = this;
    this.undrawn = false;
    view.drawn = lines.filter((line) => !this.hidden.has(line.label)).map((line) => ({ line, columns: columns(line.points, view.by, view.log) }));
    if (view.by === "step" && this.given.some((mark) => !Number.isFinite(mark.step))) this.times ??= clock(lines);
    view.marks = this.given.map((mark) => ({ ...mark, x: placeOf(mark, view.by, this.times ?? []) })).filter((mark) => mark.x !== undefined);
    const bare = !view.drawn.some(({ columns: own }) => own.last.some((value) => value !== null) || own.odd.length);
    this.note.hidden = !bare || this.hidden.size > 0;
    say(this.note, view.log && lines.some((line) => line.points.length) ? "No value here is above 0, as a log scale needs." : (this.empty ?? "Loading…"));
    this.reset.hidden = this.from === undefined && this.to === undefined;
    this.legend.told();
    this.plot.setAttribute("aria-label", this.#told());
    if (view.width && lines.length) this.#paint(anew);
    else if (this.u) this.#clear();
    this.saving.disabled = !this.u;
  }

  #paint(anew) {
    const { view } = this;
    const made = view.drawn.map(({ line }) => `${line.label}\n${line.place}`).join("\n\n");
    const data = joined(view.drawn.map(({ columns: own }) => [own.x, own.last, ...(view.smooth ? [smoothed(own.last, view.smooth)] : [])]));
    if (anew || made !== this.made) this.#clear();
    this.made = made;
    if (this.u) {
      this.u.setData(data ?? [[]]);
      return;
    }
    const told = { selected: (from, to) => this.zoom(from, to), moved: (u) => this.#moved(u), pan: (event) => pan(this, event) };
    this.u = new uPlot(options(view, told), data ?? [[]], this.plot);
    touch(this.u);
  }

  #clear() {
    this.u?.destroy();
    this.u = undefined;
  }

  // What the axis shows: what was zoomed to, or all.
  #window() {
    const ends = this.view.drawn.flatMap(({ columns: own }) => (own.x.length ? [own.x[0], own.x.at(-1)] : []));
    const from = this.from ?? Math.min(...ends);
    const to = this.to ?? Math.max(...ends);
    if (!Number.isFinite(from + to)) return [0, 1];
    return from < to ? [from, to] : [from - 1, from + 1];
  }

  #moved(u) {
    const { left } = u.cursor;
    if (!(left >= 0)) {
      say(this.at, "");
      this.tip.hidden = true;
      this.legend.values();
      return;
    }
    const values = valuesAt(this.view.drawn, u.posToVal(left, "x"));
    const known = values.find((one) => one.x !== undefined);
    say(this.at, known ? this.where(known.x) : "");
    this.legend.values(values);
    const near = this.view.marks.filter((mark) => Math.abs(u.valToPos(mark.x, "x") - left) <= 6);
    this.#tip(u, left, near.map((mark) => mark.text));
    this.heard = [known && this.where(known.x), ...values.map((one) => this.legend.text(one)), ...near.map((mark) => mark.text)];
  }

  #tip(u, left, texts) {
    const mine = this.plot.matches(":hover, :focus"); // Not where another chart's cursor is followed.
    this.tip.hidden = !texts.length || !mine;
    this.tip.replaceChildren(...texts.slice(0, TIPS).map((text) => h("p", {}, text)), texts.length > TIPS ? h("p", {}, `and ${texts.length - TIPS} more`) : "");
    const over = left > u.over.clientWidth / 2;
    this.tip.style[over ? "left" : "right"] = "auto";
    this.tip.style[over ? "right" : "left"] = `${over ? this.plot.clientWidth - u.over.offsetLeft - left + 8 : u.over.offsetLeft + left + 8}px`;
  }

  where(x) {
    if (this.view.by === "step") return `step ${x}`;
    return this.view.by === "relative" ? `${span(x)} after start` : when(x);
  }

  #told() {
    const by = { step: "by step", relative: "by time since start" }[this.view.by] ?? "by time";
    const some = this.view.drawn.filter(({ columns: own }) => own.x.length).slice(0, 12);
    const last = some.map(({ line, columns: own }) => `${line.label ?? ""} ${this.view.tell(own.told.at(-1))} at ${this.where(own.x.at(-1))}`.trim());
    return `${this.title} ${by}. ${last.length ? `Last: ${last.join("; ")}.` : "No values."} Arrow keys move the cursor, plus and minus zoom, Home shows all.`;
  }

  #end() {
    this.ended = true;
    this.loading?.abort();
    this.loading = undefined;
    clearTimeout(this.timer);
    seen.unobserve(this.root);
    sized.unobserve(this.plot);
    this.#clear();
  }
}

function icon(name, label, onclick) {
  const drawing = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
  return h("button.icon", { type: "button", "aria-label": label, title: label, onclick }, drawing);
}
