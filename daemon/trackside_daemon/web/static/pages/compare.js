// Runs beside each other: each key that they share as one chart, what they came to, and what they were started with.

import { ask } from "/static/api.js";
import { Charts } from "/static/compare/charts.js";
import { common, sums } from "/static/compare/sums.js";
import { configuration, results } from "/static/compare/tables.js";
import { h, say } from "/static/dom.js";
import { Picker, dot, labels } from "/static/picker.js";
import { plural, runAddress } from "/static/words.js";

export const title = "Compare";

const MOST = 8;
const SHOWN = 6; // So many keys at first; more by a button.
const PACE = 2000;
const AXES = { step: "Step", relative: "Time since start", time: "Time" };

export async function show(place) {
  const page = new Compare(place);
  await page.begin();
  return { root: page.root, told: (overview) => page.told(overview) };
}

class Compare {
  constructor({ query: asked, set, signal }) {
    Object.assign(this, { set, signal, runs: [], shown: SHOWN, refused: [], looked: 0 });
    this.asked = [...new Set(asked.getAll("run"))].slice(0, MOST);
    this.all = asked.has("all");
    const number = (name) => (asked.get(name) && Number.isFinite(Number(asked.get(name))) ? Number(asked.get(name)) : undefined);
    const view = {
      by: asked.get("by") in AXES ? asked.get("by") : "step",
      smooth: Math.min(0.99, Math.max(0, number("smooth") ?? 0)),
      log: asked.has("log"),
      from: number("from"),
      to: number("to"),
    };
    this.charts = new Charts(view, (from, to) => set({ from, to }), signal);
    this.#build(asked.get("filter") ?? "", view);
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
      const was = run.now;
      if (now) run.now = now;
      return now ? (now.step ?? null) !== (run.document.step ?? null) || now.state !== was?.state : was;
    });
    if (moved.length) this.#look(moved);
    else if (this.runs.some((run) => run.document.ended === null)) this.#tables();
  }

  #build(filter, view) {
    this.chips = h("ul.chips", { "aria-label": "Runs compared" });
    this.note = h("p.quiet", { role: "status" });
    this.picker = new Picker({ most: MOST, chosen: () => this.runs.map((one) => one.id), changed: (run, whether) => this.#turn(run, whether) }, this.signal);
    this.choose = h("details.picker", {}, h("summary", {}, "Choose runs"), this.picker.root);
    const axis = h("select", { onchange: () => this.#axis(axis.value) }, ...Object.entries(AXES).map(([value, text]) => h("option", { value, selected: value === view.by }, text)));
    const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smooth, oninput: () => this.#smooth(smooth.valueAsNumber), onchange: () => this.set({ smooth: smooth.valueAsNumber || "" }) });
    this.amount = h("output", {}, view.smooth.toFixed(2));
    const log = h("input", { type: "checkbox", checked: view.log, onchange: () => this.#log(log.checked) });
    this.filter = h("input", { type: "search", value: filter, placeholder: "loss", oninput: () => this.#filtered() });
    const tools = h("div.tools", {}, h("label", {}, "Keys with", this.filter), h("label", {}, "By", axis), h("label", {}, "Smoothing", smooth, this.amount), h("label", {}, log, "Log scale"));
    this.empty = h("p.quiet");
    this.more = h("button", { type: "button", onclick: () => this.#more() });
    this.results = h("section", {});
    this.settings = h("section", {});
    this.every = h("input", { type: "checkbox", checked: this.all, onchange: () => this.#every() });
    this.compared = h("div", {}, tools, this.empty, this.charts.root, h("div.tools", {}, this.more), this.results, this.settings);
    this.root = h("div.compare", {}, h("h1", {}, "Compare"), this.chips, this.note, this.choose, this.compared);
  }

  #add(document) {
    const taken = new Set(this.runs.map((one) => one.place));
    let place = 0;
    while (taken.has(place)) place += 1;
    this.runs.push({ id: document.id, place, document, sums: sums(document) });
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
    this.charts.show(keys, this.runs);
    const whose = this.runs.length > 1 ? "that they share" : "of it";
    say(this.empty, wanted ? `No key ${whose} has this in its name.` : `There is no key ${whose} yet.`);
    this.empty.hidden = keys.length > 0;
    const left = this.keys.length - keys.length;
    this.more.hidden = !left;
    say(this.more, `Show ${plural(Math.min(left, 2 * SHOWN), "more key")} of ${left}`);
    this.#tables();
  }

  // Asks anew for runs that have moved on, one question at a time.
  async #look(moved) {
    if (this.looking || performance.now() - this.looked < PACE) return;
    this.looking = true;
    try {
      const found = await Promise.all(moved.map((run) => ask(`runs/${encodeURIComponent(run.id)}`, { signal: this.signal })));
      const live = new Map(this.overview.runs.map((one) => [one.id, one]));
      moved.forEach((run, place) => Object.assign(run, { document: found[place], sums: sums(found[place]), now: live.get(run.id) }));
      this.#draw();
      this.charts.refresh();
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
      return { ...run, step, state: ended === null ? (run.now?.state ?? state) : state, seconds: (ended ?? now) - started };
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
    this.set({ by: by === "step" ? "" : by, from: "", to: "" });
    this.charts.set({ by, from: undefined, to: undefined });
  }

  #smooth(smooth) {
    say(this.amount, smooth.toFixed(2));
    this.charts.set({ smooth });
  }

  #log(log) {
    this.set({ log: log ? 1 : "" });
    this.charts.set({ log });
  }

  #filtered() {
    this.set({ filter: this.filter.value.trim() });
    this.shown = SHOWN;
    this.#draw();
  }

  #more() {
    this.shown += 2 * SHOWN;
    this.#draw();
  }

  #every() {
    this.all = this.every.checked;
    this.set({ all: this.all ? 1 : "" });
    this.#tables();
  }
}
