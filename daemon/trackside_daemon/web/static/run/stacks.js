// The current stacks of a run's processes, loaded on demand.

import { getJson, runPath } from "/static/api.js";
import { ranges } from "/static/run/keys.js";
import { h, setText } from "/static/dom.js";
import { plural, when } from "/static/format.js";
import { stackList } from "/static/stacks.js";

export class Stacks {
  constructor(/** @type {Run} */ run) {
    this.id = run.id;
    this.button = h("button", { hidden: true, onclick: () => this.#load() }, "Show stacks");
    this.status = h("p.quiet", { role: "status" });
    this.list = h("div");
    const close = h("button.small", { onclick: () => this.#close() }, "Close");
    const bar = h("div.run-bar", {}, h("h2", {}, "Stacks"), close);
    this.root = h("section.card.run-stacks", { hidden: true, "aria-label": "Stacks" }, bar, this.status, this.list);
  }

  update(live) {
    this.button.hidden = !live;
  }

  #close() {
    this.root.hidden = true;
    this.button.focus();
  }

  async #load() {
    this.root.hidden = false;
    this.button.disabled = true;
    setText(this.status, "Loading…");
    try {
      const { ranks, silent } = await getJson(`${runPath(this.id)}/stacks`);
      const silentText = silent.length
        ? ` No answer within 3 s from ${plural(silent.length, "rank")}: ${ranges(silent)}.` : "";
      setText(this.status, `${plural(ranks.length, "rank")} answered at ${when(Date.now() / 1000)}.${silentText}`);
      this.list.replaceChildren(...stackList(ranks.map(threadsOf)));
    } catch (problem) {
      setText(this.status, problem.message);
      this.list.replaceChildren();
    }
    this.button.disabled = false;
  }
}

// Returns the threads without the client's own, the main thread first, since it runs the training.
function threadsOf({ rank, threads }) {
  const main = (entry) => (entry[0].startsWith("MainThread") ? 0 : 1);
  const own = Object.entries(threads).filter(([name]) => !name.startsWith("trackside"))
    .sort((a, b) => main(a) - main(b));
  return { rank, threads: own.map(([name, frames]) => ({ name: name.replace(/ \d+$/, ""), frames })) };
}
