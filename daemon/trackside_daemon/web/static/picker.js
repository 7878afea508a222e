// A searchable list of runs, newest first, from which one or several are selected.

import { getJson, query } from "/static/api.js";
import { colorName } from "/static/charts/colors.js";
import { h, rerender, setText, ENDED } from "/static/dom.js";
import { number, when } from "/static/format.js";

const MAX_LISTED = 50;
const TYPING_MS = 150; // Delay after the last key press before a search.

// Returns a dot in the color of a run or key.
export function dot(index) {
  const element = h("span.dot", { "aria-hidden": "true" });
  element.style.background = `var(--${colorName(index)})`;
  return element;
}

export const liveFirst = (runs) => runs.sort((a, b) => Number(ENDED.has(a.state)) - Number(ENDED.has(b.state)));

const LEAST = 4; // Characters of an id that are shown.

// Returns the names of runs; equal names are followed by the part of the id that tells them apart: train-7f3a.
export function labels(runs) {
  const byName = new Map(runs.map((run) => [run.name, []]));
  for (const run of runs) byName.get(run.name).push(run.id);
  for (const ids of byName.values()) ids.sort(); // An id differs least from its neighbors.
  return runs.map((run) => {
    const ids = byName.get(run.name);
    if (ids.length < 2) return run.name;
    if (run.id.startsWith(run.name)) return run.id;
    const [start, at] = [commonStart(ids[0], ids.at(-1)), ids.indexOf(run.id)];
    const near = [ids[at - 1], ids[at + 1]];
    let end = start + LEAST;
    while (end < run.id.length && near.some((id) => id?.startsWith(run.id.slice(0, end)))) end += 1;
    return `${run.name}-${run.id.slice(start, end)}`;
  });
}

// Returns the length of what both ids begin with, up to a separator.
function commonStart(first, last) {
  let length = 0;
  while (length < first.length && first[length] === last[length]) length += 1;
  return /[^a-z0-9]?[a-z0-9]*$/i.exec(first.slice(0, length)).index +
    (/[^a-z0-9]/i.test(first.slice(0, length)) ? 1 : 0);
}

// At most `most` runs can be selected. `chosen()` returns them as
// { id, document, index }, where `index` is that of a color; they are listed even if no search finds them.
// `onChange(run, isSelected)` and `onHover(run)` are callbacks. `update()` marks the selected runs.
export class Picker {
  constructor({ most, chosen, onChange, onHover = (_run = undefined) => {} }, signal) {
    this.most = most;
    this.chosen = chosen;
    this.onChange = onChange;
    this.onHover = onHover;
    this.signal = signal;
    this.search = h("input", { type: "search", placeholder: "tag:sweep lr=3e-4", oninput: () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.load().catch(() => {}), TYPING_MS);
    } });
    this.status = h("span.quiet", { role: "status" });
    this.list = h("ul.ticks", {});
    const label = h("label", {}, h("span", {}, "Search runs"), this.search);
    this.root = h("div", {}, h("div.tools", {}, label, this.status), this.list);
    signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  // Lists the runs; throws when the page has been closed meanwhile.
  async load() {
    this.request?.abort();
    const controller = new AbortController();
    this.request = controller;
    const text = this.search.value.trim();
    try {
      const { runs, hint } = await getJson(`runs?${query({ limit: MAX_LISTED, query: text })}`,
        AbortSignal.any([this.signal, controller.signal]));
      const others = this.chosen().map((run) => run.document).filter((run) => !runs.some(({ id }) => id === run.id));
      this.listed = liveFirst(runs);
      this.#show([...others, ...runs], hint);
    } catch (problem) {
      if (!controller.signal.aborted) setText(this.status, problem.message);
    }
    this.signal.throwIfAborted();
  }

  update() {
    const chosen = new Map(this.chosen().map((run) => [run.id, run]));
    const full = chosen.size >= this.most;
    for (const box of this.list.querySelectorAll("input")) {
      const run = chosen.get(box.value);
      box.checked = chosen.has(box.value);
      box.disabled = full && !box.checked;
      rerender(box.nextSibling, String(run?.index), () => (run?.index === undefined ? [] : dot(run.index)));
    }
    if (full) setText(this.status, `At most ${this.most} runs. Remove one to choose another.`);
    else setText(this.status, this.count ?? "");
  }

  #show(runs, hint) {
    const texts = labels(runs);
    this.list.replaceChildren(...runs.map((run, index) => this.#row(run, texts[index])));
    this.list.hidden = !runs.length;
    this.count = this.listed.length === MAX_LISTED ? `Showing the newest ${MAX_LISTED}. Search to find others.` : "";
    if (!this.listed.length) this.count = hint || "No runs yet. Add trackside.push(…) to your training script.";
    this.update();
  }

  #row(run, text) {
    const box = h("input", { type: "checkbox", name: "run", value: run.id,
      onchange: () => this.onChange(run, box.checked) });
    const more = [run.step === null || run.step === undefined ? "" : `step ${number(run.step)}`,
      when(run.started)].filter(Boolean);
    const hover = { onmouseenter: () => this.onHover(run), onmouseleave: () => this.onHover() };
    return h("li", hover, h("label", {}, box, h("span"), h("span.of", {}, text), h(`span.${run.state}`, {}, run.state),
      h("span.quiet", {}, more.join(", "))));
  }
}
