// All runs of this machine, or of all machines (Fleet, read only): sorted, filtered, grouped; kept in the address.

import { getJson, query, post, remove, runPath } from "/static/api.js";
import { h, setText, ENDED, fillSelect, unseen, icon } from "/static/dom.js";
import { plural } from "/static/format.js";
import { runSelection } from "/static/overview/selection.js";
import { labels, liveFirst } from "/static/picker.js";
import { RUNS_MS, isDue } from "/static/polling.js";
import { editRun } from "/static/runs/edit.js";
import { allColumns, columnOf, completions, defaultColumns, grouped, prepared, sorted } from "/static/runs/columns.js";
import { Plots } from "/static/runs/plots.js";
import { RunTable } from "/static/runs/table.js";
import { openDialog, undone } from "/static/confirm.js";
import { Curves } from "/static/runs/curves.js";

export const title = "Runs";

const WIDTHS = "run-widths"; // Name in the browser's storage.
const NOT_GROUPED = ["curve", "loss", "step", "started", "duration", "notes"]; // Columns with many values.
const TYPING_MS = 150; // Delay after the last key press before a search.
const DELETED_AT_ONCE = 16; // Browsers send about 20 requests of a tab that closes.

export async function show(/** @type {Address} */ address) {
  const page = new Runs(address);
  await page.load();
  return { root: page.root, title: page.title, update: (overview) => page.update(overview) };
}

class Runs {
  constructor({ path, query: params, set, signal }) {
    this.isFleet = path === "fleet";
    this.title = this.isFleet ? "Fleet" : title;
    this.set = set;
    this.signal = signal;
    this.runs = [];
    this.keys = [];
    this.notes = []; // What is not read yet.
    this.now = Date.now() / 1000;
    this.loadedAt = 0;
    const sort = params.get("sort") ?? "-started";
    this.ids = params.getAll("column");
    this.sort = { id: sort.replace(/^-/, ""), descending: sort.startsWith("-") };
    this.group = params.get("group") ?? "";
    this.widths = readWidths();
    this.selection = runSelection([["Tag", "write", (ids) => this.#tag(ids)], ["Pin", "write", (ids) => this.#pin(ids)],
      ["Delete", "admin", (ids) => this.#delete(ids)]], () => this.listed.map((run) => run.id));
    this.listed = [];
    this.deleted = new Set();
    this.plots = new Plots({ x: params.get("x"), result: params.get("result") }, (chosen) => set(chosen));
    this.plots.root.open = params.has("x");
    this.curves = new Curves(() => this.table.updateCurves(), signal);
    this.table = new RunTable({
      leads: (run) => (this.isFleet ? [] : this.#leads(run)),
      curve: (run) => this.curves.get(run),
      onVisible: (runs) => !this.shownIds?.includes("curve") || this.isFleet ? undefined : this.curves.want(runs),
      onSort: (id) => this.#sort(id),
      onTag: (tag) => this.#filter(`tag:${tag.replace(/[\s"|]/g, "?")}`),
      onWidth: (id, width) => this.#width(id, width),
    });
    this.#build(params.get("q") ?? "");
    signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  #build(pattern) {
    this.options = h("datalist", { id: "run-queries" });
    this.field = h("input", { type: "search", value: pattern, placeholder: "lr=3e-4 bs>=64 tag:sweep failed -debug",
      spellcheck: "false", list: "run-queries", oninput: () => this.#filteredSoon() });
    this.hint = h("span.quiet", { role: "status" });
    this.chips = h("span.chips", { role: "group", "aria-label": "Conditions", hidden: true });
    this.groups = h("select", { onchange: () => this.#change({ group: this.groups.value }) });
    this.choice = h("div.column-choice");
    const choose = h("details.columns", { ontoggle: () => choose.open && this.#choices() }, h("summary", {}, "Columns"),
      this.choice);
    this.error = h("p.bad", { role: "alert" });
    this.empty = h("section.notice.empty",
      { hidden: true }, h("p", {}, "No runs yet. Add two lines to your training script:"),
      h("pre", {}, "import trackside\n…\ntrackside.push(step=step, loss=loss)"));
    const tools = h("div.tools", { role: "search", "aria-label": "Runs" }, h("label.query", {}, "Filter", this.field),
      this.options, h("label", {}, "Group by", this.groups), choose, this.hint, this.chips);
    this.root = h("div.runs-page", {}, h("h1", {}, this.title), tools, this.error, this.empty, this.table.root,
      this.plots.root, this.isFleet ? [] : this.selection.root);
  }

  async load() {
    this.loadedAt = performance.now();
    try {
      const metric = [...new Set([...this.ids, this.sort.id, this.group].map((id) => columnOf(id)?.key)
        .filter(Boolean))];
      const [{ runs, problems = [], notes = [] }, { keys }] = await Promise.all(this.isFleet
        ? [getJson("fleet", this.signal), { keys: [] }]
        : [getJson(`runs?${query({ config: true, metric })}`, this.signal), getJson("keys", this.signal)]);
      const names = labels(runs);
      this.runs = runs.map((run, index) => prepared({ ...run, label: names[index] }, this.now));
      [this.keys, this.notes] = [keys, notes];
      setText(this.error, problems.join(". "));
      await this.#search();
    } catch (problem) {
      if (this.signal.aborted || problem.status === 401) throw problem;
      this.#fail(problem);
    }
  }

  // Called with each overview.
  update(/** @type {Overview} */ overview) {
    this.now = overview.time;
    const seen = overview.runs.map((run) => `${run.id} ${run.state}`).join();
    const isLive = this.isFleet || overview.runs.some((run) => !ENDED.has(run.state));
    const due = (this.notes.length || isDue(this.loadedAt, RUNS_MS)) && isLive;
    const isEditing = this.root.contains(document.activeElement) && document.activeElement.matches(".grip, select");
    if ((seen !== this.seen && this.seen !== undefined) || (due && !isEditing)) this.load().catch(() => {});
    this.seen = seen;
  }

  #draw() {
    this.empty.hidden = this.isFleet || this.runs.length > 0;
    this.table.root.hidden = !this.runs.length;
    const ids = this.ids.length ? this.ids : defaultColumns(this.runs);
    this.shownIds = ids;
    const names = allColumns(this.runs, []).flatMap(([, ids]) => ids).filter((id) => !NOT_GROUPED.includes(id));
    fillSelect(this.groups, ["", ...names], (id) => columnOf(id)?.title ?? "none", this.group);
    const found = this.runs.filter(({ id }) => !this.deleted.has(id) && (!this.found || this.found.ids.has(id)));
    const column = columnOf(this.sort.id) ?? columnOf("started");
    const ordered = sorted(found, column, this.sort.descending);
    if (this.sort.id === "started") liveFirst(ordered);
    const by = this.group && columnOf(this.group);
    const groups = by ? grouped(ordered, by) : [[undefined, ordered]];
    this.listed = groups.flatMap(([, runs]) => runs);
    this.table.show(groups, ids.map(columnOf).filter(Boolean), this.widths, this.sort);
    this.plots.update(ordered, ids.map((id) => columnOf(id)?.key).filter(Boolean));
    const count = this.found
      ? `${found.length} of ${plural(this.runs.length, "run")}` : plural(this.runs.length, "run");
    setText(this.hint, this.problem ?? [this.found?.hint || count, ...this.notes].join(". "));
    this.hint.classList.toggle("bad", Boolean(this.problem));
    this.chips.hidden = !(this.found?.terms.length > 1);
    this.chips.replaceChildren(...(this.found?.terms ?? []).map((term, index, terms) =>
      h("button.tag", { "aria-label": `Remove ${term}`,
        onclick: () => this.#filter(terms.filter((_, other) => other !== index).join(" ")) }, `${term} ×`)));
  }

  // Asks the daemon which runs the filter selects; while it cannot be read, the last selection stays.
  async #search() {
    const text = this.field.value.trim();
    this.request?.abort();
    const controller = new AbortController();
    this.request = controller;
    this.problem = undefined;
    try {
      const found = text && await getJson(`${this.isFleet ? "fleet" : "runs"}?${query({ query: text })}`,
        AbortSignal.any([this.signal, controller.signal]));
      this.found = text ? { ...found, ids: new Set(found.runs.map((run) => run.id)) } : undefined;
    } catch (problem) {
      if (controller.signal.aborted) return;
      if (this.signal.aborted || problem.status === 401) throw problem;
      this.problem = problem.message;
    }
    this.#draw();
  }

  #choices() {
    const groups = allColumns(this.runs, this.keys).map(([name, ids]) => {
      const boxes = ids.map((id) => {
        const box = h("input", { type: "checkbox", checked: this.shownIds.includes(id),
          onchange: () => this.#toggle(id, box.checked) });
        return h("label", {}, box, columnOf(id).title);
      });
      return h("fieldset", {}, h("legend", {}, name), boxes);
    });
    this.choice.replaceChildren(...groups,
      h("button", { onclick: () => this.#change({ ids: [] }) }, "Default columns"));
  }

  #toggle(id, isShown) {
    const ids = isShown ? [...this.shownIds, id] : this.shownIds.filter((item) => item !== id);
    this.#change({ ids: ids.length ? ids : ["name"] });
  }

  #sort(id) {
    const isSame = this.sort.id === id;
    this.#change({ sort: { id, descending: isSame ? !this.sort.descending : false } });
  }

  #filter(text) {
    this.field.value = text;
    this.set({ q: text });
    this.#search().catch(() => {});
  }

  #filteredSoon() {
    const options = completions(this.field.value, this.runs);
    this.options.replaceChildren(...options.map((value) => h("option", { value })));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#filter(this.field.value), TYPING_MS);
  }

  // Changes the columns, the order or the groups; values of a new key are loaded.
  #change(changes) {
    Object.assign(this, changes);
    const { id, descending } = this.sort;
    this.set({ column: this.ids, sort: id === "started" && descending ? "" : `${descending ? "-" : ""}${id}`,
      group: this.group });
    this.#draw();
    const needed = [...this.ids, this.sort.id].some((item) =>
      columnOf(item)?.key && !this.runs.some((run) => run.metrics?.[columnOf(item).key]));
    if (needed) this.load().catch(() => {});
  }

  #width(id, width) {
    if (width === undefined) delete this.widths[id];
    else this.widths[id] = width;
    localStorage.setItem(WIDTHS, JSON.stringify(this.widths));
    this.#draw();
  }

  async #edit(run) {
    const result = await editRun(run, this.signal);
    if (result === "deleted") this.selection.set([run.id], false);
    if (result) await this.load();
  }

  #leads(run) {
    if (!run) return [this.selection.allBox(), unseen("Edit")];
    const edit = () => this.#edit(run).catch(() => {}); // The page may be left meanwhile.
    return [this.selection.box(run), icon("settings", `Edit ${run.label}`, edit, "write")];
  }

  // The selected runs, also those that the filter does not list now.
  #selected(ids) {
    const wanted = new Set(ids);
    return this.runs.filter((run) => wanted.has(run.id));
  }

  #tag(ids) {
    const tag = h("input", { placeholder: "baseline", required: true, maxlength: 256 });
    const dialog = openDialog(`Tag ${plural(ids.length, "run")}`, { action: "Tag",
      content: h("label.field", {}, "Tag", tag),
      submit: async () => {
        await this.#each(ids, (run) => post(`${runPath(run.id)}/about`,
          { tags: [...new Set([...run.tags, tag.value.trim()])] }));
        dialog.close();
      } }, this.signal);
  }

  // Pins the runs; if all are pinned, lets them go.
  #pin(ids) {
    const pinned = this.#selected(ids).some((run) => !run.pinned);
    return this.#each(ids, (run) => post(`${runPath(run.id)}/pin`, { pinned })).catch((problem) => this.#fail(problem));
  }

  // The runs leave the list at once, and the history when it is too late to undo that, or the page is left.
  async #delete(ids) {
    const ended = this.#selected(ids).filter((run) => ENDED.has(run.state)).map((run) => run.id);
    this.selection.set(ended, false);
    for (const id of ended) this.deleted.add(id);
    this.#draw();
    if (!ended.length) this.#fail(new Error("A run that is live cannot be deleted."));
    if (!ended.length || (await undone(`${plural(ended.length, "run")} deleted`, this.signal))) {
      for (const id of ended) this.deleted.delete(id);
      this.#draw();
      return;
    }
    const problems = [];
    while (ended.length) await Promise.all(ended.splice(0, DELETED_AT_ONCE).map((id) =>
      remove(runPath(id)).catch((problem) => problems.push(problem) && this.deleted.delete(id))));
    if (!this.signal.aborted) await this.load();
    if (problems.length) this.#fail(problems[0]);
  }

  async #each(ids, change) {
    try {
      for (const run of this.#selected(ids)) await change(run);
    } finally {
      await this.load();
    }
  }

  #fail(problem) {
    setText(this.error, problem.message);
  }
}

function readWidths() {
  try {
    return JSON.parse(localStorage.getItem(WIDTHS)) ?? {};
  } catch {
    return {};
  }
}
