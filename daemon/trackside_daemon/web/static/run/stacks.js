// Where each thread of a run's processes is now, asked when the person wants to know.

import { ask } from "/static/api.js";
import { ranges } from "/static/run/words.js";
import { h, say } from "/static/dom.js";
import { plural, when } from "/static/words.js";

export class Stacks {
  constructor(run) {
    this.id = run.id;
    this.button = h("button", { type: "button", hidden: true, onclick: () => this.#ask() }, "Stacks now");
    this.said = h("p.quiet", { role: "status" });
    this.list = h("div");
    const close = h("button.small", { type: "button", onclick: () => this.#close() }, "Close");
    const bar = h("div.run-bar", {}, h("h2", {}, "Stacks"), close);
    this.root = h("section.card.run-stacks", { hidden: true, "aria-label": "Stacks" }, bar, this.said, this.list);
  }

  told(live) {
    this.button.hidden = !live;
  }

  #close() {
    this.root.hidden = true;
    this.button.focus();
  }

  async #ask() {
    this.root.hidden = false;
    this.button.disabled = true;
    say(this.said, "Asking…");
    try {
      const { ranks, silent } = await ask(`runs/${encodeURIComponent(this.id)}/stacks`);
      const quiet = silent.length ? ` Silent: ${plural(silent.length, "rank")} ${ranges(silent)}, no answer in 3 s.` : "";
      say(this.said, `${plural(ranks.length, "rank")} answered at ${when(Date.now() / 1000)}.${quiet}`);
      this.list.replaceChildren(...ranks.map((one, place) => rank(one, place === 0)));
    } catch (problem) {
      say(this.said, problem.message);
      this.list.replaceChildren();
    }
    this.button.disabled = false;
  }
}

// The main thread first: it is what trains.
function rank({ rank: number, threads }, open) {
  const main = (name) => (name.startsWith("MainThread") ? 0 : 1);
  const names = Object.keys(threads).sort((one, other) => main(one) - main(other));
  const stack = (name) => h("pre", { tabindex: 0, "aria-label": `Stack of ${name}, rank ${number}` }, [...threads[name]].reverse().join("\n"));
  const each = names.map((name) => [h("h3", {}, name.replace(/ \d+$/, "")), stack(name)]);
  return h("details", { open }, h("summary", {}, `Rank ${number}`, h("span.quiet", {}, ` ${threads[names[0]]?.at(-1) ?? ""}`)), each);
}
