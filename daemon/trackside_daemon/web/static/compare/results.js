// The results and the configuration of runs as two tables.

import { configuration, results } from "/static/compare/tables.js";
import { h, setText } from "/static/dom.js";
import { span } from "/static/format.js";

export class Results {
  // `all`: equal settings are shown too. `onToggle(all)` is called when that changes.
  constructor(all, onToggle) {
    this.all = all;
    this.results = h("section", {});
    this.settings = h("section", {});
    this.showAll = h("input", { type: "checkbox", checked: all, onchange: () => this.#showAll() });
    this.onToggle = onToggle;
    this.root = this.results;
  }

  // Shows the values of some keys; `now` is the daemon's clock.
  update(runs, keys, now) {
    this.runs = runs;
    const rows = runs.map((run) => {
      const { started, ended, step, state } = run.document;
      return { ...run, step, state: ended === null ? (run.now?.state ?? state) : state,
        seconds: (ended ?? now) - started };
    });
    const values = rows.map(({ id, label, state, step, document, summaries }) =>
      [id, label, state, step, document.summary, keys.map((key) => summaries.get(key))]);
    const shown = JSON.stringify([values, keys]);
    if (shown !== this.shown) this.#make(rows, keys);
    this.shown = shown;
    this.results.querySelectorAll("td.took").forEach((cell, index) => setText(cell, span(rows[index].seconds)));
    this.#settings();
  }

  #make(rows, keys) {
    const hasRanks = rows.some((run) => new Set(run.document.metrics.map((item) => item.rank)).size > 1);
    const focused = this.results.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const left = this.results.querySelector(".scroll")?.scrollLeft ?? 0;
    const rankNote = hasRanks && h("p.quiet", {}, "Values of each run's lowest rank.");
    this.results.replaceChildren(...[h("h2", {}, "Results"), rankNote, results(rows, keys)].filter(Boolean));
    this.results.querySelector(".scroll").scrollLeft = left;
    if (focused) this.results.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }

  #settings() {
    const documents = this.runs.map((item) => item.document);
    const isComparison = this.runs.length > 1;
    const shown = JSON.stringify([documents.map((item) => [item.id, item.attempt_list]), this.all]);
    if (shown === this.shownSettings) return;
    this.shownSettings = shown;
    const { status, root } = configuration(this.runs, documents, this.all || !isComparison);
    const tools = h("div.tools", {}, h("span.quiet", { role: "status" }, status),
      isComparison && h("label", {}, this.showAll, "Show all"));
    this.settings.replaceChildren(
      ...[h("h2", {}, isComparison ? "What differs" : "Configuration"), tools, root].filter(Boolean));
  }

  #showAll() {
    this.all = this.showAll.checked;
    this.onToggle(this.all);
    this.#settings();
    this.showAll.focus();
  }
}
