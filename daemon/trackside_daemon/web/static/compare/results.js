// What runs came to and what they were started with, as two tables that are kept up to date.

import { configuration, results } from "/static/compare/tables.js";
import { h, say } from "/static/dom.js";
import { span } from "/static/words.js";

export class Results {
  // `all` is whether settings that are the same are shown too; `turned(all)` is told when another is chosen.
  constructor(all, turned) {
    this.all = all;
    this.results = h("section", {});
    this.settings = h("section", {});
    this.every = h("input", { type: "checkbox", checked: all, onchange: () => this.#every() });
    this.turned = turned;
    this.root = h("div", {}, this.results, this.settings);
  }

  // Of runs the values of some keys, at a moment of the daemon's clock.
  told(runs, keys, now) {
    this.runs = runs;
    const rows = runs.map((run) => {
      const { started, ended, step, state } = run.document;
      return { ...run, step, state: ended === null ? (run.now?.state ?? state) : state, seconds: (ended ?? now) - started };
    });
    const values = rows.map(({ id, label, state, step, sums }) => [id, label, state, step, keys.map((key) => sums.get(key))]);
    const made = JSON.stringify([values, keys]);
    if (made !== this.made) this.#make(rows, keys);
    this.made = made;
    this.results.querySelectorAll("td.took").forEach((cell, place) => say(cell, span(rows[place].seconds)));
    this.#settings();
  }

  #make(rows, keys) {
    const many = rows.some((run) => new Set(run.document.metrics.map((one) => one.rank)).size > 1);
    const focused = this.results.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const left = this.results.querySelector(".scroll")?.scrollLeft ?? 0;
    const whose = many && h("p.quiet", {}, "Of the lowest rank of each run.");
    this.results.replaceChildren(...[h("h2", {}, "Results"), whose, results(rows, keys)].filter(Boolean));
    this.results.querySelector(".scroll").scrollLeft = left;
    if (focused) this.results.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }

  #settings() {
    const documents = this.runs.map((one) => one.document);
    const several = this.runs.length > 1;
    const made = JSON.stringify([documents.map((one) => [one.id, one.attempt_list]), this.all]);
    if (made === this.configured) return;
    this.configured = made;
    const { said, root } = configuration(this.runs, documents, this.all || !several);
    const tools = h("div.tools", {}, h("span.quiet", { role: "status" }, said), several && h("label", {}, this.every, "Show all"));
    this.settings.replaceChildren(...[h("h2", {}, "Configuration"), tools, root].filter(Boolean));
  }

  #every() {
    this.all = this.every.checked;
    this.turned(this.all);
    this.#settings();
    this.every.focus();
  }
}
