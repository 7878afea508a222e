// A workspace of runs: a list in which check marks switch their lines on and off, a chart of each key that they share,
// and one table with what differs and what came of it.

import { COMPARISON_MS, coalesce, isDue } from "/static/polling.js";
import { getJson, runPath } from "/static/api.js";
import { Charts } from "/static/compare/charts.js";
import { Results, sharedKeys, keySummaries, settingsOfAll } from "/static/compare/results.js";
import { h, setText, fillSelect } from "/static/dom.js";
import { Picker, labels } from "/static/picker.js";
import { keyFilter } from "/static/run/keys.js";
import { controls } from "/static/run/workspace.js";
import { settingsOf } from "/static/run/tables.js";
import { prepared } from "/static/runs/columns.js";
import { Plots } from "/static/runs/plots.js";
import { plural, plain } from "/static/format.js";

export const title = "Compare";

const MAX_RUNS = 32; // Twelve colors, solid, dashed and dotted.
const FIRST_RUNS = 12; // Without a choice, the newest.
const SHOWN_KEYS = 6; // Keys at first; a button shows more.

export async function show(/** @type {Address} */ address) {
  const page = new Compare(address);
  await page.load();
  return { root: page.root, update: (overview) => page.update(overview) };
}

class Compare {
  constructor(/** @type {Address} */ address) {
    const { query: params, set, signal } = address;
    this.set = set;
    this.signal = signal;
    this.runs = [];
    this.shownKeys = SHOWN_KEYS;
    this.missing = [];
    this.reloadedAt = -Infinity;
    const requested = [...new Set(params.getAll("run"))];
    this.wanted = requested.slice(0, MAX_RUNS);
    if (requested.length > MAX_RUNS) this.missing.push(
      `Showing the first ${MAX_RUNS} of ${requested.length} runs, since more could not be told apart.`);
    this.load = coalesce(() => this.#load());
    this.results = new Results({ all: params.has("all"), baseline: params.get("baseline"),
      sort: params.get("sort") ?? "" }, set);
    this.selection = controls(address, (changes) => this.#changed(changes), true);
    this.group = params.get("group") ?? "";
    this.plots = new Plots({ x: params.get("x"), result: params.get("result") }, (chosen) => set(chosen));
    this.charts = new Charts(this.selection, (run) => this.#groupOf(run), signal);
    this.#build();
  }

  // Loads the documents of the wanted runs that are not there yet, and draws.
  async #load() {
    if (!this.picker.listed) {
      await this.picker.load();
      if (!this.wanted.length) this.wanted = this.picker.listed.slice(0, FIRST_RUNS).map((run) => run.id);
    }
    const added = this.wanted.filter((id) => !this.runs.some((run) => run.id === id));
    const answers = await this.#fetch(added);
    this.runs = this.runs.filter((run) => this.wanted.includes(run.id));
    for (const [index, { value, reason }] of answers.entries()) {
      this.wanted = this.wanted.map((id) => (id === added[index] && value ? value.id : id));
      if (value && !this.runs.some((item) => item.id === value.id)) this.#add(value);
      else if (reason?.status === 404) this.missing.push(`Run “${added[index]}” does not exist.`);
      else if (reason) this.missing.push(reason.message);
    }
    this.wanted = this.runs.map((run) => run.id);
    this.#onChange();
  }

  // Resolves to { value } or { reason } for each id: the document of the run, or why there is none.
  /** @returns {Promise<{ value?: Run, reason?: any }[]>} */
  #fetch(ids) {
    return Promise.allSettled(ids.map((id) => getJson(runPath(id), this.signal)));
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
  }

  #build() {
    this.note = h("p.quiet", { role: "status" });
    const choose = (ids) => {
      this.wanted = ids.slice(0, MAX_RUNS);
      this.missing = [];
      this.load();
    };
    this.picker = new Picker({ most: MAX_RUNS, chosen: () => this.runs,
      onChange: (run, isOn) => choose(isOn ? [...this.wanted, run.id] : this.wanted.filter((id) => id !== run.id)),
      onHover: (run) => this.charts.emphasize(run) }, this.signal);
    const all = () => choose([...new Set([...this.wanted, ...this.picker.listed.map((run) => run.id)])]);
    this.picker.list.before(h("div.tools", {}, h("button.small", { onclick: all }, "All listed"),
      h("button.small", { onclick: () => choose([]) }, "None")));
    const side = h("details.picker", { open: innerWidth > 800 }, h("summary", {}, "Runs"), this.picker.root);
    this.empty = h("p.quiet", { role: "status" });
    this.more = h("button", { onclick: () => {
      this.shownKeys += 2 * SHOWN_KEYS;
      this.#draw();
    } });
    this.groups = h("select", { onchange: () => this.#grouped(this.groups.value) });
    this.selection.tools.append(h("label", {}, "Group by", this.groups));
    const charts = h("section", { "aria-label": "Charts" }, this.note, this.selection.root, this.empty,
      this.charts.root, h("div.tools", {}, this.more));
    this.root = h("div.compare", {}, h("h1", {}, "Compare"), h("div.sided", {}, side, charts), this.results.root,
      this.plots.root);
  }

  #add(document) {
    const usedIndexes = new Set(this.runs.map((item) => item.index));
    let index = 0;
    while (usedIndexes.has(index)) index += 1;
    this.runs.push({ id: document.id, index, document, summaries: keySummaries(document) });
  }

  #onChange() {
    const texts = labels(this.runs.map((item) => item.document));
    this.runs.forEach((run, index) => { run.label = texts[index]; });
    this.set({ run: this.wanted });
    this.picker.update();
    const hint = this.runs.length ? "" : "Check runs in the list to see their charts.";
    setText(this.note, [...this.missing, hint].filter(Boolean).join(" "));
    this.#draw();
  }

  // Draws the keys that the runs share and that match the filter.
  #draw() {
    this.keys = sharedKeys(this.runs.map((item) => item.summaries), Math.min(2, this.runs.length))
      .filter(keyFilter(this.selection.filter));
    const keys = this.keys.slice(0, this.shownKeys);
    this.settings = settingsOfAll(this.runs.map((run) => run.document));
    const { differing } = this.settings;
    const group = differing.includes(this.group) ? this.group : "";
    fillSelect(this.groups, ["", ...differing], (name) => name || "none", group);
    const inAll = (key) => this.runs.every((run) => run.summaries.has(key));
    const steps = this.runs.map((run) => run.document.step ?? 0);
    this.selection.update({ attempt_list: [], metrics: this.keys.filter(inAll).map((key) =>
      ({ key, rank: 0, last_step: Math.max(...steps) })) });
    this.charts.show(keys, this.runs);
    const rows = this.runs.map((run, index) => this.#row(run, index, keys));
    this.plots.update(rows.map((row, index) => ({ ...row, settings: settingsOf(this.runs[index].document) })), keys);
    this.results.update(rows, this.settings, keys);
    const scope = this.runs.length > 1 ? "shared by these runs" : "of this run";
    const why = this.selection.filter.trim() ? `No key ${scope} matches the filter.` : `There is no key ${scope} yet.`;
    setText(this.empty, keys.length || !this.runs.length ? "" : why);
    const left = this.keys.length - keys.length;
    this.more.hidden = !left;
    setText(this.more, `Show ${plural(Math.min(left, 2 * SHOWN_KEYS), "more key")} of ${left}`);
  }

  // A run as the table and the plots read it.
  #row({ label, index: color, document, now, summaries }, index, keys) {
    const metrics = Object.fromEntries(keys.map((key) => [key, summaries.get(key)]));
    const state = document.ended === null ? now?.state ?? document.state : document.state;
    return { ...prepared({ ...document, state, label, metrics, index: color }, this.overview?.time ?? document.started),
      settings: this.settings.all[index] };
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

  #changed(changes) {
    if ("filter" in changes) {
      this.shownKeys = SHOWN_KEYS;
      this.#draw();
    } else this.charts.set(changes);
  }

  // Lines of runs with the same value of a setting become one line with a band.
  #grouped(group) {
    this.group = group;
    this.set({ group });
    this.charts.reload();
  }

  #groupOf(run) {
    if (!this.settings.differing.includes(this.group)) return undefined;
    const value = this.settings.all[this.runs.indexOf(run)]?.get(this.group);
    return `${this.group.split(".").at(-1)} ${value === undefined ? "unknown" : plain(value)}`;
  }
}
