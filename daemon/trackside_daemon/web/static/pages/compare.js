// A comparison of runs: a chart of each shared key, the results, and the configuration.

import { COMPARISON_MS, isDue } from "/static/polling.js";
import { oneOf } from "/static/address.js";
import { getJson, runPath } from "/static/api.js";
import { readSmoothing, smoothingControl, smoothingQuery } from "/static/charts/smoothing_control.js";
import { Charts } from "/static/compare/charts.js";
import { Results, sharedKeys, keySummaries } from "/static/compare/results.js";
import { h, setText, choices, checkbox, fillSelect } from "/static/dom.js";
import { Picker, dot, labels } from "/static/picker.js";
import { settingsOf } from "/static/run/tables.js";
import { prepared } from "/static/runs/columns.js";
import { Plots } from "/static/runs/plots.js";
import { plural, runAddress, plain } from "/static/format.js";

export const title = "Compare";

const MAX_RUNS = 32; // Eight colors, solid, dashed and dotted.
const SHOWN_KEYS = 6; // Keys at first; a button shows more.
const AMOUNTS = ["tokens", "samples"]; // Axes that need a key of that name.
const HINTS = [
  "Choose two or more runs to compare their charts, results and configuration.",
  "Choose another run to compare with this one.",
];
const AXES = { step: "Step", relative: "Time since start", time: "Time", tokens: "Tokens", samples: "Samples" };

export async function show(/** @type {Address} */ address) {
  const page = new Compare(address);
  await page.load();
  return { root: page.root, update: (overview) => page.update(overview) };
}

class Compare {
  constructor({ query: params, set, signal }) {
    this.set = set;
    this.signal = signal;
    this.runs = [];
    this.shownKeys = SHOWN_KEYS;
    this.missing = [];
    this.reloadedAt = -Infinity;
    const requested = [...new Set(params.getAll("run"))];
    this.requestedIds = requested.slice(0, MAX_RUNS);
    if (requested.length > MAX_RUNS) this.missing.push(
      `Showing the first ${MAX_RUNS} of ${requested.length} runs, since more could not be told apart.`);
    this.results = new Results(params.has("all"), (all) => set({ all: all ? 1 : "" }));
    const number = (name) =>
      (params.get(name) && Number.isFinite(Number(params.get(name))) ? Number(params.get(name)) : undefined);
    const view = {
      by: oneOf(AXES, params.get("by"), "step"),
      smooth: readSmoothing(params),
      log: params.has("log"),
      robust: params.has("robust"),
      from: number("from"),
      to: number("to"),
    };
    this.group = params.get("group") ?? "";
    this.plots = new Plots({ x: params.get("x"), result: params.get("result") }, (chosen) => set(chosen));
    this.charts = new Charts(view, (run) => this.#groupOf(run), (from, to) => this.#zoomed(from, to), signal);
    this.#build(params.get("filter") ?? "", view);
  }

  async load() {
    const answers = await this.#fetch(this.requestedIds);
    for (const [index, { value, reason }] of answers.entries()) {
      if (value && !this.runs.some((item) => item.id === value.id)) this.#add(value);
      else if (reason?.status === 404) this.missing.push(notFoundText(this.requestedIds[index]));
      else if (reason) throw reason;
    }
    await this.picker.load();
    this.choose.open = this.runs.length < 2;
    this.#onChange();
  }

  // Resolves to { value } or { reason } for each id: the document of the run, or why there is none.
  /** @returns {Promise<{ value?: Run, reason?: any }[]>} */
  #fetch(ids) {
    const load = (id) => getJson(runPath(id), this.signal);
    return Promise.allSettled(ids.map(load));
  }

  update(/** @type {Overview} */ overview) {
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
    this.picker = new Picker({ most: MAX_RUNS, selected,
      onChange: (run, isSelected) => this.#toggleRun(run, isSelected) }, this.signal);
    this.choose = h("details.picker", {}, h("summary", {}, "Choose runs"), this.picker.root);
    this.compared = h("div", {}, this.#tools(filter, view));
    this.empty = h("p.quiet");
    this.more = h("button", { onclick: () => this.#more() });
    this.compared.append(this.empty, this.charts.root, h("div.tools", {}, this.more), this.results.root,
      this.plots.root);
    this.compared.prepend(this.results.settings);
    this.root = h("div.compare", {}, h("h1", {}, "Compare"), this.chips, this.note, this.choose, this.compared);
  }

  #tools(filter, view) {
    const axes = choices(AXES, view.by);
    const axis = h("select", { onchange: () => this.#setAxis(axis.value) }, axes);
    this.axis = axis;
    this.smoothing = smoothingControl(view.smooth, (smooth) => this.#smooth(smooth));
    const boxes = Object.entries({ log: "Log scale", robust: "Ignore outliers" }).map(([name, text]) =>
      checkbox(name, text, view, (changes) => this.#look(changes)));
    this.groups = h("select", { onchange: () => this.#grouped(this.groups.value) });
    this.reset = h("button.strong",
      { hidden: view.from === undefined, onclick: () => this.#resetZoom() }, "Reset zoom");
    this.filter = h("input", { type: "search", value: filter, placeholder: "loss", oninput: () => this.#filtered() });
    const labelled = [["Keys containing", this.filter], ["By", axis], ["Group by", this.groups]];
    return h("div.tools.run-tools", {}, labelled.map((item) => h("label", {}, item)), boxes, this.smoothing.root,
      this.reset);
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
        const document = await getJson(runPath(run.id), this.signal);
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
    const removeButton = h("button.icon", { "aria-label": `Remove ${run.label}`, title: "Remove",
      onclick: () => this.#toggleRun(run, false) }, "×");
    const isShown = !this.charts.hidden.has(run.id);
    const toggle = h("button.icon.legend-dot", { "aria-pressed": String(isShown),
      "aria-label": `Show ${run.label} in the charts`, title: "Show or hide in the charts", onclick: () => {
      this.charts.toggle(run.id);
      toggle.setAttribute("aria-pressed", String(!this.charts.hidden.has(run.id)));
    } }, dot(run.index));
    return h("li", {}, toggle, h("a", { href: runAddress(run.id) }, run.label), removeButton);
  }

  // Draws the keys that the runs share and that match the filter.
  #draw() {
    const requested = this.filter.value.trim().toLowerCase();
    this.keys = sharedKeys(this.runs.map((item) => item.summaries), Math.min(2, this.runs.length))
      .filter((key) => key.toLowerCase().includes(requested));
    const keys = this.keys.slice(0, this.shownKeys);
    this.#groupOptions();
    for (const option of this.axis.options)
      option.hidden = AMOUNTS.includes(option.value) && !this.runs.every((run) => run.summaries.has(option.value));
    this.smoothing.update(Math.max(0, ...this.runs.map((run) => run.document.step ?? 0)));
    this.charts.show(keys, this.runs);
    this.plots.update(this.runs.map((run) => plotted(run, keys)), keys);
    const scope = this.runs.length > 1 ? "shared by these runs" : "of this run";
    setText(this.empty, requested ? `No key ${scope} matches the filter.` : `There is no key ${scope} yet.`);
    this.empty.hidden = keys.length > 0;
    const left = this.keys.length - keys.length;
    this.more.hidden = !left;
    setText(this.more, `Show ${plural(Math.min(left, 2 * SHOWN_KEYS), "more key")} of ${left}`);
    this.#tables();
  }

  // Reloads runs with new steps, one batch at a time. A deleted run stays as it was; after an outage the next overview
  // tries again.
  async #reload(changedRuns) {
    if (this.reloading || !isDue(this.reloadedAt, COMPARISON_MS)) return;
    this.reloading = true;
    const shownState = changedRuns.map((run) => run.now);
    const answers = await this.#fetch(changedRuns.map((run) => run.id));
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

  #setAxis(by) {
    this.set({ by: by === "step" ? "" : by, from: "", to: "" });
    this.charts.set({ by, from: undefined, to: undefined });
    this.reset.hidden = true;
  }

  #smooth(smooth) {
    this.set(smoothingQuery(smooth));
    this.charts.set({ smooth });
  }

  // Applies a setting that is on or off.
  #look(changes) {
    this.set(Object.fromEntries(Object.entries(changes).map(([name, isOn]) => [name, isOn ? 1 : ""])));
    this.charts.set(changes);
  }

  #zoomed(from, to) {
    this.set({ from, to });
    this.reset.hidden = from === undefined && to === undefined;
  }

  #resetZoom() {
    this.charts.set({ from: undefined, to: undefined });
    this.#zoomed(undefined, undefined);
  }

  // Lines of runs with the same value of a setting become one line with a band.
  #grouped(group) {
    this.group = group;
    this.set({ group });
    this.charts.reload();
  }

  #groupOf(run) {
    if (!this.group) return undefined;
    const value = settingsOf(run.document).get(this.group);
    return `${this.group.split(".").at(-1)} ${value === undefined ? "unknown" : plain(value)}`;
  }

  #groupOptions() {
    const names = [...new Set(this.runs.flatMap((run) => [...settingsOf(run.document).keys()]))];
    const differing = names.filter((name) =>
      new Set(this.runs.map((run) => JSON.stringify(settingsOf(run.document).get(name)))).size > 1);
    fillSelect(this.groups, ["", ...differing], (name) => name || "none");
    this.groups.value = differing.includes(this.group) ? this.group : "";
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


// A run as the plots read it.
function plotted({ label, document, summaries }, keys) {
  const config = Object.fromEntries(settingsOf(document));
  const metrics = Object.fromEntries(keys.map((key) => [key, summaries.get(key)]));
  return prepared({ ...document, label, config, metrics }, document.ended ?? document.started);
}

function notFoundText(id) {
  return `Run “${id}” does not exist.`;
}
