// Runs beside each other: each key that they share as one chart, what they came to, and what they were started with.

import { ask, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { common, sums } from "/static/compare/sums.js";
import { configuration, results } from "/static/compare/tables.js";
import { h, say } from "/static/dom.js";
import { Picker, dot, labels } from "/static/picker.js";
import { runAddress } from "/static/app.js";
import { plural } from "/static/words.js";

export const title = "Compare";

const MOST = 8;
const CHARTS = 6; // So many at first; more by a button.
const PACE = 2000;
const AXES = { step: "Step", relative: "Time since start", time: "Time" };

export async function show(place) {
  const page = new Compare(place);
  await page.begin();
  return { root: page.root, told: (overview) => page.told(overview) };
}

class Compare {
  constructor({ query: asked, set, signal }) {
    Object.assign(this, { set, signal, runs: [], charts: new Map(), shown: CHARTS, refused: [], looked: 0 });
    this.asked = [...new Set(asked.getAll("run"))].slice(0, MOST);
    this.by = asked.get("by") in AXES ? asked.get("by") : "step";
    this.smooth = Math.min(0.99, Math.max(0, Number(asked.get("smooth")) || 0));
    this.log = asked.has("log");
    this.all = asked.has("all");
    [this.from, this.to] = ["from", "to"].map((name) => (asked.get(name) && Number.isFinite(Number(asked.get(name))) ? Number(asked.get(name)) : undefined));
    this.#build(asked.get("filter") ?? "");
  }

  async begin() {
    const found = await Promise.allSettled(this.asked.map((id) => ask(`runs/${encodeURIComponent(id)}`, { signal: this.signal })));
    for (const [place, { value, reason }] of found.entries()) {
      if (value && !this.runs.some((one) => one.id === value.id)) this.#add(value);
      else if (reason?.status === 404) this.refused.push(this.asked[place]);
      else if (reason) throw reason;
    }
    await this.picker.begin();
    this.choose.open = this.runs.length < 2;
    this.#changed();
  }

  told(overview) {
    this.overview = overview;
    const live = new Map(overview.runs.map((one) => [one.id, one]));
    const moved = this.runs.filter((run) => {
      const now = live.get(run.id);
      return now ? (now.step ?? null) !== (run.document.step ?? null) || now.state !== run.document.state : run.live;
    });
    for (const run of this.runs) run.live = live.has(run.id);
    if (moved.length) this.#look(moved);
    else if (this.runs.some((run) => run.document.ended === null)) this.#tables();
  }

  #build(filter) {
    this.chips = h("ul.chips", { "aria-label": "Runs compared" });
    this.note = h("p.quiet", { role: "status" });
    this.picker = new Picker({ most: MOST, chosen: () => this.runs.map((one) => one.id), changed: (run, whether) => this.#turn(run, whether) }, this.signal);
    this.choose = h("details.picker", {}, h("summary", {}, "Choose runs"), this.picker.root);
    const axis = h("select", { onchange: () => this.#axis(axis.value) }, ...Object.entries(AXES).map(([value, text]) => h("option", { value, selected: value === this.by }, text)));
    const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: this.smooth, oninput: () => this.#smooth(smooth.valueAsNumber), onchange: () => this.set({ smooth: this.smooth || "" }) });
    this.amount = h("output", {}, this.smooth.toFixed(2));
    const log = h("input", { type: "checkbox", checked: this.log, onchange: () => this.#log(log.checked) });
    this.filter = h("input", { type: "search", value: filter, placeholder: "loss", oninput: () => this.#filtered() });
    this.tools = h("div.tools", {}, h("label", {}, "Keys with", this.filter), h("label", {}, "By", axis), h("label", {}, "Smoothing", smooth, this.amount), h("label", {}, log, "Log scale"));
    this.grid = h("div.charts");
    this.more = h("button", { type: "button", onclick: () => this.#more() });
    this.results = h("section", {});
    this.settings = h("section", {});
    this.every = h("input", { type: "checkbox", checked: this.all, onchange: () => this.#every() });
    this.compared = h("div", {}, this.tools, this.grid, h("div.tools", {}, this.more), this.results, this.settings);
    this.root = h("div.compare", {}, h("h1", {}, "Compare"), this.chips, this.note, this.choose, this.compared);
  }

  #add(document) {
    const taken = new Set(this.runs.map((one) => one.place));
    let place = 0;
    while (taken.has(place)) place += 1;
    this.runs.push({ id: document.id, place, document, sums: sums(document), live: false });
  }

  async #turn(run, whether) {
    if (!whether) this.runs = this.runs.filter((one) => one.id !== run.id);
    else if (this.runs.length < MOST) {
      try {
        const document = await ask(`runs/${encodeURIComponent(run.id)}`, { signal: this.signal });
        if (this.runs.length < MOST && !this.runs.some((one) => one.id === run.id)) this.#add(document);
      } catch (problem) {
        if (!this.signal.aborted) say(this.note, problem.message);
        this.picker.told();
        return;
      }
    }
    this.refused = [];
    this.#changed();
  }

  #changed() {
    const texts = labels(this.runs.map((one) => one.document));
    this.runs.forEach((run, place) => { run.label = texts[place]; });
    this.set({ run: this.runs.map((one) => one.id) });
    this.picker.told();
    this.chips.replaceChildren(...this.runs.map((run) => this.#chip(run)));
    this.chips.hidden = !this.runs.length;
    this.compared.hidden = !this.runs.length;
    const missing = this.refused.map((id) => `There is no run “${id}”.`);
    const next = ["Choose two or more runs, to see them on one chart with their results and what was different.", "Choose another run to compare this one with."][this.runs.length];
    say(this.note, [...missing, next].filter(Boolean).join(" "));
    this.note.hidden = !this.note.textContent;
    for (const key of [...this.charts.keys()]) this.#drop(key);
    this.#draw();
  }

  #chip(run) {
    const away = h("button.icon", { type: "button", "aria-label": `Remove ${run.label}`, title: "Remove", onclick: () => this.#turn(run, false) }, "×");
    return h("li", {}, dot(run.place), h("a", { href: runAddress(run.id) }, run.label), away);
  }

  // Draws what the runs have in common, as far as the filter goes.
  #draw() {
    const wanted = this.filter.value.trim().toLowerCase();
    this.keys = common(this.runs.map((one) => one.sums), Math.min(2, this.runs.length)).filter((key) => key.toLowerCase().includes(wanted));
    const keys = this.keys.slice(0, this.shown);
    for (const key of [...this.charts.keys()]) if (!keys.includes(key)) this.#drop(key);
    keys.forEach((key, place) => {
      const { root } = this.charts.get(key)?.chart ?? this.#chart(key);
      if (this.grid.children[place] !== root) this.grid.insertBefore(root, this.grid.children[place] ?? null);
    });
    const none = wanted ? "No key that they share has this in its name." : "They share no key yet.";
    this.empty?.remove();
    if (!keys.length && this.runs.length) this.grid.before((this.empty = h("p.quiet", {}, this.runs.length > 1 ? none : none.replace("they share", "it has").replace("They share", "It has"))));
    const left = this.keys.length - keys.length;
    this.more.hidden = !left;
    say(this.more, `Show ${plural(Math.min(left, 2 * CHARTS), "more key")} of ${left}`);
    this.#tables();
  }

  #chart(key) {
    const ending = new AbortController();
    const chart = new Chart({
      title: key, by: this.by, log: this.log, smooth: this.smooth, from: this.from, to: this.to, sync: "compare",
      load: (asked) => this.#load(key, asked),
      zoomed: (from, to) => this.#zoomed(chart, from, to),
    }, AbortSignal.any([this.signal, ending.signal]));
    this.charts.set(key, { chart, ending });
    return chart;
  }

  #drop(key) {
    const { chart, ending } = this.charts.get(key);
    ending.abort();
    chart.root.remove();
    this.charts.delete(key);
  }

  async #load(key, { by, from, to, points, signal }) {
    const runs = this.runs.filter((one) => one.sums.has(key));
    const shift = (run) => (by === "relative" ? run.document.started : 0);
    const zoomed = from !== undefined || to !== undefined;
    const groups = by === "relative" && zoomed ? runs.map((run) => [run]) : [runs];
    const asking = async (group) => {
      const window = [from, to].map((one) => (one === undefined ? undefined : one + shift(group[0])));
      return (await ask(`series?${query({ run: group.map((one) => one.id), key, by: by === "step" ? "step" : "time", from: window[0], to: window[1], points })}`, { signal })).series;
    };
    const found = runs.length ? (await Promise.all(groups.map(asking))).flat() : [];
    return runs.flatMap((run) => {
      const own = found.filter((one) => one.run === run.id && one.points.length);
      return own.map((one, number) => ({
        label: own.length > 1 ? `${run.label}, attempt ${one.attempt}` : run.label,
        place: run.place + MOST * number,
        points: shift(run) ? one.points.map(([step, time, ...rest]) => [step, time - shift(run), ...rest]) : one.points,
      }));
    });
  }

  #zoomed(chart, from, to) {
    [this.from, this.to] = [from, to];
    this.set({ from, to });
    for (const { chart: other } of this.charts.values()) if (other !== chart) other.set({ from, to });
  }

  // Asks anew for runs that have moved on, one question at a time.
  async #look(moved) {
    if (this.looking || performance.now() - this.looked < PACE) return;
    this.looking = true;
    try {
      const found = await Promise.all(moved.map((run) => ask(`runs/${encodeURIComponent(run.id)}`, { signal: this.signal })));
      moved.forEach((run, place) => Object.assign(run, { document: found[place], sums: sums(found[place]) }));
      this.#draw();
      for (const { chart } of this.charts.values()) chart.refresh();
    } catch {
      // The next overview tries again, and the frame says that the daemon does not answer.
    } finally {
      this.looking = false;
      this.looked = performance.now();
    }
  }

  #tables() {
    const now = this.overview?.time;
    const rows = this.runs.map((run) => {
      const { started, ended, step, state } = run.document;
      return { ...run, step, state, seconds: (ended ?? now) - started };
    });
    const many = this.runs.some((run) => new Set(run.document.metrics.map((one) => one.rank)).size > 1);
    const keys = this.keys.slice(0, this.shown);
    const told = JSON.stringify([rows.map(({ id, label, state, step, seconds, sums: own }) => [id, label, state, step, Math.round(seconds), keys.map((key) => own.get(key))]), keys]);
    if (told !== this.tabled) {
      const focused = this.results.contains(document.activeElement) && document.activeElement.getAttribute("href");
      const left = this.results.querySelector(".scroll")?.scrollLeft ?? 0;
      this.results.replaceChildren(...[h("h2", {}, "Results"), many && h("p.quiet", {}, "Of the lowest rank of each run."), results(rows, keys)].filter(Boolean));
      this.results.querySelector(".scroll").scrollLeft = left;
      if (focused) this.results.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    }
    this.tabled = told;
    this.#settings(rows);
  }

  #settings(rows) {
    const documents = this.runs.map((one) => one.document);
    const told = JSON.stringify([documents.map((one) => [one.id, one.attempt_list]), this.all]);
    if (told === this.configured) return;
    this.configured = told;
    const { said, root } = configuration(rows, documents, this.all || rows.length < 2);
    const every = rows.length > 1 && h("label", {}, this.every, "Show all");
    this.settings.replaceChildren(...[h("h2", {}, "Configuration"), h("div.tools", {}, h("span.quiet", { role: "status" }, said), every), root].filter(Boolean));
  }

  #axis(by) {
    this.by = by;
    [this.from, this.to] = [undefined, undefined];
    this.set({ by: by === "step" ? "" : by, from: "", to: "" });
    for (const { chart } of this.charts.values()) chart.set({ by });
  }

  #smooth(smooth) {
    this.smooth = smooth;
    say(this.amount, smooth.toFixed(2));
    for (const { chart } of this.charts.values()) chart.set({ smooth });
  }

  #log(log) {
    this.log = log;
    this.set({ log: log ? 1 : "" });
    for (const { chart } of this.charts.values()) chart.set({ log });
  }

  #filtered() {
    this.set({ filter: this.filter.value.trim() });
    this.shown = CHARTS;
    this.#draw();
  }

  #more() {
    this.shown += 2 * CHARTS;
    this.#draw();
  }

  #every() {
    this.all = this.every.checked;
    this.set({ all: this.all ? 1 : "" });
    this.#tables();
  }
}
