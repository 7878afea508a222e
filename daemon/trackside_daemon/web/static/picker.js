// A list of runs to choose from: newest first, searched by name or id in the daemon, one or several at a time.

import { ask, query } from "/static/api.js";
import { h, say } from "/static/dom.js";
import { number, when } from "/static/words.js";

const LISTED = 50;
const PAUSE = 150; // Milliseconds without a key pressed, before a search is asked.

// The colour of a run or key, as a dot beside its name.
export function dot(place) {
  const made = h("span.dot", { "aria-hidden": "true" });
  made.style.background = `var(--s${(place % 8) + 1})`;
  return made;
}

// Names of runs; where two have the same, with the beginning of the id, as far as it makes them differ.
export function labels(runs) {
  return runs.map((run) => {
    const same = runs.filter((one) => one.name === run.name && one.id !== run.id);
    let length = 8;
    while (length < run.id.length && same.some((one) => one.id.slice(0, length) === run.id.slice(0, length))) length += 4;
    return same.length ? `${run.name} (${run.id.slice(0, length)})` : run.name;
  });
}

// `most` runs can be chosen, one by radio buttons, several by checkboxes; `chosen()` gives their ids, `changed(run, whether)`
// is told. `root` is the element; `told()` marks what is chosen now; `found(count)` hears how many runs a search has.
export class Picker {
  constructor({ most, chosen, changed, found = () => {} }, signal) {
    Object.assign(this, { most, chosen, changed, found, signal });
    this.search = h("input", { type: "search", placeholder: "Name or id", oninput: () => this.#soon() });
    this.said = h("span.quiet", { role: "status" });
    this.list = h("ul.ticks", {});
    this.root = h("div", {}, h("div.tools", {}, h("label", {}, "Search runs", this.search), this.said), this.list);
    signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  // Lists the runs; raises when the page has been left meanwhile.
  async begin() {
    this.asking?.abort();
    const mine = new AbortController();
    this.asking = mine;
    const name = this.search.value.trim();
    try {
      const { runs } = await ask(`runs?${query({ limit: LISTED, name })}`, { signal: AbortSignal.any([this.signal, mine.signal]) });
      this.#show(runs, name);
      this.found(runs.length);
    } catch (problem) {
      if (!mine.signal.aborted) say(this.said, problem.message);
    }
    this.signal.throwIfAborted();
  }

  told() {
    const chosen = this.chosen();
    const full = this.most > 1 && chosen.length >= this.most;
    for (const box of this.list.querySelectorAll("input")) {
      box.checked = chosen.includes(box.value);
      box.disabled = full && !box.checked;
    }
    if (full) say(this.said, `${this.most} runs at most. Remove one to choose another.`);
    else say(this.said, this.count ?? "");
  }

  #soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.begin().catch(() => {}), PAUSE);
  }

  #show(runs, name) {
    const texts = labels(runs);
    this.list.replaceChildren(...runs.map((run, place) => this.#row(run, texts[place])));
    this.list.hidden = !runs.length;
    this.count = runs.length === LISTED ? `The newest ${LISTED}. Search to find others.` : "";
    if (!runs.length) this.count = name ? `No run has “${name}” in its name.` : "No runs yet. Add trackside.push(…) to a training.";
    this.told();
  }

  #row(run, text) {
    const box = h("input", { type: this.most > 1 ? "checkbox" : "radio", name: "run", value: run.id, onchange: () => this.changed(run, box.checked) });
    const more = [run.step === null || run.step === undefined ? "" : `step ${number(run.step)}`, when(run.started)].filter(Boolean);
    return h("li", {}, h("label", {}, box, h("span.of", {}, text), h(`span.${run.state}`, {}, run.state), h("span.quiet", {}, more.join(", "))));
  }
}
