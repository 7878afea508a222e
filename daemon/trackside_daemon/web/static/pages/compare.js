// A comparison of runs: a chart of each shared key, the results, and the configuration.

import { getJson } from "/static/api.js";
import { Charts } from "/static/compare/charts.js";
import { Results } from "/static/compare/results.js";
import { sharedKeys, keySummaries } from "/static/compare/key_summaries.js";
import { h, setText } from "/static/dom.js";
import { Picker, dot, labels } from "/static/picker.js";
import { plural, runAddress } from "/static/format.js";

export const title = "Compare";

const MAX_RUNS = 8;
const SHOWN_KEYS = 6; // Keys at first; a button shows more.
const RELOAD_MS = 2000;
const HINTS = [
  "Choose two or more runs to compare their charts, results and configuration.",
  "Choose another run to compare with this one.",
];
const AXES = { step: "Step", relative: "Time since start", time: "Time" };

export async function show(address) {
  const page = new Compare(address);
  await page.load();
  return { root: page.root, update: (overview) => page.update(overview) };
}

class Compare {
  constructor({ query: params, set, signal }) {
    Object.assign(this, { set, signal, runs: [], shownKeys: SHOWN_KEYS, missing: [], reloadedAt: 0 });
    const requested = [...new Set(params.getAll("run"))];
    this.requestedIds = requested.slice(0, MAX_RUNS);
    if (requested.length > MAX_RUNS) this.missing.push(`Showing the first ${MAX_RUNS} of ${requested.length} runs, since there are only ${MAX_RUNS} colors.`);
    this.results = new Results(params.has("all"), (all) => set({ all: all ? 1 : "" }));
    const number = (name) => (params.get(name) && Number.isFinite(Number(params.get(name))) ? Number(params.get(name)) : undefined);
    const view = {
      by: params.get("by") in AXES ? params.get("by") : "step",
      smooth: Math.min(0.99, Math.max(0, number("smooth") ?? 0)),
      log: params.has("log"),
      from: number("from"),
      to: number("to"),
    };
    this.charts = new Charts(view, (from, to) => set({ from, to }), signal);
    this.#build(params.get("filter") ?? "", view);
  }

  async load() {
    const answers = await Promise.allSettled(this.requestedIds.map((id) => getJson(`runs/${encodeURIComponent(id)}`, { signal: this.signal })));
    for (const [index, { value, reason }] of answers.entries()) {
      if (value && !this.runs.some((item) => item.id === value.id)) this.#add(value);
      else if (reason?.status === 404) this.missing.push(notFoundText(this.requestedIds[index]));
      else if (reason) throw reason;
    }
    await this.picker.load();
    this.choose.open = this.runs.length < 2;
    this.#onChange();
  }

  update(overview) {
    this.overview = overview;
    const live = new Map(overview.runs.map((item) => [item.id, item]));
    const changedRuns = this.runs.filter((run) => {
      run.now = live.get(run.id);
      // After a resume, the document's step, the highest of all attempts, exceeds the current one.
      const isNewer = run.now?.step > (run.document.step ?? -Infinity);
      return isNewer || run.now?.step !== run.shownState?.step || run.now?.state !== run.shownState?.state;
    });
    if (changedRuns.length) this.#reload(changedRuns);
    else if (this.runs.some((run) => run.document.ended === null)) this.#tables();
  }

  #build(filter, view) {
    this.chips = h("ul.chips", { "aria-label": "Runs compared" });
    this.note = h("p.quiet", { role: "status" });
    const selected = () => this.runs.map((item) => item.id);
    this.picker = new Picker({ most: MAX_RUNS, selected, onChange: (run, isSelected) => this.#toggleRun(run, isSelected) }, this.signal);
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
    const labelled = [["Keys containing", this.filter], ["By", axis], ["Smoothing", smooth, this.amount], [log, "Log scale"]];
    return h("div.tools", {}, labelled.map((item) => h("label", {}, item)));
  }

  #add(document) {
    const usedIndexes = new Set(this.runs.map((item) => item.index));
    let index = 0;
    while (usedIndexes.has(index)) index += 1;
    this.runs.push({ id: document.id, index, document, summaries: keySummaries(document) });
  }

  async #toggleRun(run, isSelected) {
    if (!isSelected) this.runs = this.runs.filter((item) => item.id !== run.id);
    else if (this.runs.length < MAX_RUNS) {
      try {
        const document = await getJson(`runs/${encodeURIComponent(run.id)}`, { signal: this.signal });
        if (this.runs.length < MAX_RUNS && !this.runs.some((item) => item.id === run.id)) this.#add(document);
      } catch (problem) {
        setText(this.note, problem.message);
        this.note.hidden = false;
        this.picker.update();
        return;
      }
    }
    this.missing = [];
    this.#onChange();
  }

  #onChange() {
    const texts = labels(this.runs.map((item) => item.document));
    this.runs.forEach((run, index) => { run.label = texts[index]; });
    this.set({ run: this.runs.map((item) => item.id) });
    this.picker.update();
    this.chips.replaceChildren(...this.runs.map((run) => this.#chip(run)));
    this.chips.hidden = !this.runs.length;
    this.compared.hidden = !this.runs.length;
    setText(this.note, [...this.missing, HINTS[this.runs.length]].filter(Boolean).join(" "));
    this.note.hidden = !this.note.textContent;
    this.#draw();
  }

  #chip(run) {
    const removeButton = h("button.icon", { type: "button", "aria-label": `Remove ${run.label}`, title: "Remove", onclick: () => this.#toggleRun(run, false) }, "×");
    return h("li", {}, dot(run.index), h("a", { href: runAddress(run.id) }, run.label), removeButton);
  }

  // Draws the keys that the runs share and that match the filter.
  #draw() {
    const requested = this.filter.value.trim().toLowerCase();
    this.keys = sharedKeys(this.runs.map((item) => item.summaries), Math.min(2, this.runs.length)).filter((key) => key.toLowerCase().includes(requested));
    const keys = this.keys.slice(0, this.shownKeys);
    this.charts.show(keys, this.runs);
    const scope = this.runs.length > 1 ? "shared by these runs" : "of this run";
    setText(this.empty, requested ? `No key ${scope} matches the filter.` : `There is no key ${scope} yet.`);
    this.empty.hidden = keys.length > 0;
    const left = this.keys.length - keys.length;
    this.more.hidden = !left;
    setText(this.more, `Show ${plural(Math.min(left, 2 * SHOWN_KEYS), "more key")} of ${left}`);
    this.#tables();
  }

  // Reloads runs with new steps, one batch at a time. A deleted run stays as it was. Without an answer the next overview
  // tries again, and the frame reports the outage.
  async #reload(changedRuns) {
    if (this.reloading || performance.now() - this.reloadedAt < RELOAD_MS) return;
    this.reloading = true;
    const shownState = changedRuns.map((run) => run.now);
    const answers = await Promise.allSettled(changedRuns.map((run) => getJson(`runs/${encodeURIComponent(run.id)}`, { signal: this.signal })));
    answers.forEach(({ value, reason }, index) => {
      if (value) Object.assign(changedRuns[index], { document: value, summaries: keySummaries(value) });
      if (value || reason.status === 404) changedRuns[index].shownState = shownState[index];
    });
    this.reloading = false;
    this.reloadedAt = performance.now();
    if (!answers.some((item) => item.value)) return;
    this.#draw();
    this.charts.refresh();
  }

  #tables() {
    this.results.update(this.runs, this.keys.slice(0, this.shownKeys), this.overview?.time);
  }

  #axis(by) {
    this.set({ by: by === "step" ? "" : by, from: "", to: "" });
    this.charts.set({ by, from: undefined, to: undefined });
  }

  #smooth(smooth) {
    setText(this.amount, smooth.toFixed(2));
    this.charts.set({ smooth });
  }

  #log(log) {
    this.set({ log: log ? 1 : "" });
    this.charts.set({ log });
  }

  #filtered() {
    this.set({ filter: this.filter.value.trim() });
    this.shownKeys = SHOWN_KEYS;
    this.#draw();
  }

  #more() {
    this.shownKeys += 2 * SHOWN_KEYS;
    this.#draw();
  }
}

function notFoundText(id) {
  return `Run “${id}” does not exist.`;
}
