// Runs beside each other: each key that they share as one chart, what they came to, and what they were started with.

import { ask } from "/static/api.js";
import { Charts } from "/static/compare/charts.js";
import { Results } from "/static/compare/results.js";
import { common, sums } from "/static/compare/sums.js";
import { h, say } from "/static/dom.js";
import { Picker, dot, labels } from "/static/picker.js";
import { plural, runAddress } from "/static/words.js";

export const title = "Compare";

const MOST = 8;
const SHOWN = 6; // So many keys at first; more by a button.
const PACE = 2000;
const NEXT = [
  "Choose two or more runs, to see them on one chart with their results and what was different.",
  "Choose another run to compare this one with.",
];
const AXES = { step: "Step", relative: "Time since start", time: "Time" };

export async function show(place) {
  const page = new Compare(place);
  await page.begin();
  return { root: page.root, told: (overview) => page.told(overview) };
}

class Compare {
  constructor({ query: asked, set, signal }) {
    Object.assign(this, { set, signal, runs: [], shown: SHOWN, missing: [], looked: 0 });
    const wanted = [...new Set(asked.getAll("run"))];
    this.asked = wanted.slice(0, MOST);
    if (wanted.length > MOST) this.missing.push(`Of the ${wanted.length} runs chosen these are the first ${MOST}: more cannot be told apart.`);
    this.results = new Results(asked.has("all"), (all) => set({ all: all ? 1 : "" }));
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
      else if (reason?.status === 404) this.missing.push(absent(this.asked[place]));
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
      run.now = live.get(run.id);
      // After a resume the document's step, the highest of all attempts, is above that of now.
      const behind = run.now?.step > (run.document.step ?? -Infinity);
      return behind || run.now?.step !== run.seen?.step || run.now?.state !== run.seen?.state;
    });
    if (moved.length) this.#look(moved);
    else if (this.runs.some((run) => run.document.ended === null)) this.#tables();
  }

  #build(filter, view) {
    this.chips = h("ul.chips", { "aria-label": "Runs compared" });
    this.note = h("p.quiet", { role: "status" });
    const chosen = () => this.runs.map((one) => one.id);
    this.picker = new Picker({ most: MOST, chosen, changed: (run, whether) => this.#turn(run, whether) }, this.signal);
    this.choose = h("details.picker", {}, h("summary", {}, "Choose runs"), this.picker.root);
    this.compared = h("div", {}, this.#tools(filter, view));
    this.empty = h("p.quiet");
    this.more = h("button", { type: "button", onclick: () => this.#more() });
    this.compared.append(this.empty, this.charts.root, h("div.tools", {}, this.more), this.results.root);
    this.root = h("div.compare", {}, h("h1", {}, "Compare"), this.chips, this.note, this.choose, this.compared);
  }

  #tools(filter, view) {
    const axes = Object.entries(AXES).map(([value, text]) => h("option", { value, selected: value === view.by }, text));
    const axis = h("select", { onchange: () => this.#axis(axis.value) }, axes);
    const drawn = { oninput: () => this.#smooth(smooth.valueAsNumber), onchange: () => this.set({ smooth: smooth.valueAsNumber || "" }) };
    const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smooth, ...drawn });
    this.amount = h("output", {}, view.smooth.toFixed(2));
    const log = h("input", { type: "checkbox", checked: view.log, onchange: () => this.#log(log.checked) });
    this.filter = h("input", { type: "search", value: filter, placeholder: "loss", oninput: () => this.#filtered() });
    const labelled = [["Keys with", this.filter], ["By", axis], ["Smoothing", smooth, this.amount], [log, "Log scale"]];
    return h("div.tools", {}, labelled.map((one) => h("label", {}, one)));
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
        say(this.note, problem.message);
        this.note.hidden = false;
        this.picker.told();
        return;
      }
    }
    this.missing = [];
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
    say(this.note, [...this.missing, NEXT[this.runs.length]].filter(Boolean).join(" "));
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

  // Asks anew for runs that have moved on, one question at a time. What has been deleted stays as it was; without an
  // answer the next overview tries again, and the frame says so.
  async #look(moved) {
    if (this.looking || performance.now() - this.looked < PACE) return;
    this.looking = true;
    const seen = moved.map((run) => run.now);
    const found = await Promise.allSettled(moved.map((run) => ask(`runs/${encodeURIComponent(run.id)}`, { signal: this.signal })));
    found.forEach(({ value, reason }, place) => {
      if (value) Object.assign(moved[place], { document: value, sums: sums(value) });
      if (value || reason.status === 404) moved[place].seen = seen[place];
    });
    this.looking = false;
    this.looked = performance.now();
    if (!found.some((one) => one.value)) return;
    this.#draw();
    this.charts.refresh();
  }

  #tables() {
    this.results.told(this.runs, this.keys.slice(0, this.shown), this.overview?.time);
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
}

function absent(id) {
  return `There is no run “${id}”.`;
}
