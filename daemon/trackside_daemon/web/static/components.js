// Small components of several pages. Each has a method `update` that changes only what differs.

import { h, setText } from "/static/dom.js";

const MARKS = {
  ...{ starting: "◔", running: "●", stalled: "‖", finished: "✓", stopped: "■", failed: "✕", lost: "?" },
  ...{ critical: "◆", warning: "▲", info: "○", down: "✕" },
};
export const ENDED = new Set(["finished", "stopped", "failed", "lost"]);

// Returns a state or severity with a mark of its own, so that color is not needed. `text` replaces the word.
export function badge(word, text) {
  const mark = h("span", { "aria-hidden": "true" });
  const label = h("span");
  const element = h("span.badge", {}, mark, " ", label);
  element.update = (state, shownText = state) => {
    element.className = `badge ${state ?? ""}`;
    element.hidden = !state;
    setText(mark, MARKS[state] ?? "·");
    setText(label, shownText ?? "");
  };
  element.update(word, text);
  return element;
}

// Returns a bar for a ratio. It is hidden from screen readers, which read the text next to it. `levels` are the ratios from which
// its color warns and is bad.
export function bar() {
  const fill = h("span");
  const element = h("span.bar", { "aria-hidden": "true" }, fill);
  element.update = (ratio, levels) => {
    element.hidden = !Number.isFinite(ratio);
    const width = `${(100 * Math.min(1, Math.max(0, ratio))).toFixed(1)}%`;
    if (!element.hidden && fill.style.width !== width) fill.style.width = width;
    fill.className = !levels || ratio < levels[0] ? "" : ratio < levels[1] ? "high" : "full";
  };
  return element;
}

// Returns a definition list of `[name, text or element, ratio, levels]`; entries without a text are hidden.
export function facts() {
  const element = h("dl.facts");
  const shown = new Map();
  element.update = (entries) => {
    for (const [name, text, ratio, levels] of entries) {
      if (!shown.has(name)) {
        const row = { term: h("dt", {}, name), value: h("span"), bar: bar() };
        row.detail = h("dd", {}, row.value, row.bar);
        shown.set(name, row);
        element.append(row.term, row.detail);
      }
      const row = shown.get(name);
      row.term.hidden = row.detail.hidden = text === undefined || text === "";
      if (!(text instanceof Node)) setText(row.value, text ?? "");
      else if (row.value.firstChild !== text) row.value.replaceChildren(text);
      row.bar.update(ratio, levels);
    }
  };
  return element;
}

// Replaces an element's content when `text`, the data that it is made from, differs.
export function rerender(element, text, make) {
  if (element.madeOf === text) return;
  element.madeOf = text;
  element.replaceChildren(...[make()].flat());
}
