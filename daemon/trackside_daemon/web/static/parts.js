// Small parts that several pages are made of. Each has a method `told`, and changes only what is another now.

import { h, say } from "/static/dom.js";

const MARKS = {
  ...{ starting: "◔", running: "●", stalled: "‖", finished: "✓", stopped: "■", failed: "✕", lost: "?" },
  ...{ critical: "◆", warning: "▲", info: "○", down: "✕" },
};
export const ENDED = new Set(["finished", "stopped", "failed", "lost"]);

// A word of state or severity behind a mark of its own, so that neither needs a colour. *text* may stand in its place.
export function badge(word, text) {
  const mark = h("span", { "aria-hidden": "true" });
  const said = h("span");
  const element = h("span.badge", {}, mark, " ", said);
  element.told = (now, instead = now) => {
    element.className = `badge ${now ?? ""}`;
    element.hidden = !now;
    say(mark, MARKS[now] ?? "·");
    say(said, instead ?? "");
  };
  element.told(word, text);
  return element;
}

// A ratio as a length. Beside it stands a text that says the same, which is what a screen reader tells.
export function bar() {
  const fill = h("span");
  const element = h("span.bar", { "aria-hidden": "true" }, fill);
  element.told = (ratio) => {
    element.hidden = !Number.isFinite(ratio);
    const width = `${(100 * Math.min(1, Math.max(0, ratio))).toFixed(1)}%`;
    if (!element.hidden && fill.style.width !== width) fill.style.width = width;
  };
  return element;
}

// Names and what they are, of pairs `[name, text or element, ratio]`; those without a text are left out.
export function facts() {
  const element = h("dl.facts");
  const shown = new Map();
  element.told = (pairs) => {
    for (const [name, text, ratio] of pairs) {
      if (!shown.has(name)) {
        const row = { term: h("dt", {}, name), said: h("span"), bar: bar() };
        row.told = h("dd", {}, row.said, row.bar);
        shown.set(name, row);
        element.append(row.term, row.told);
      }
      const row = shown.get(name);
      row.term.hidden = row.told.hidden = text === undefined || text === "";
      if (!(text instanceof Node)) say(row.said, text ?? "");
      else if (row.said.firstChild !== text) row.said.replaceChildren(text);
      row.bar.told(ratio);
    }
  };
  return element;
}

// Sets what an element holds, when the text that it is made of is another.
export function renew(element, text, make) {
  if (element.madeOf === text) return;
  element.madeOf = text;
  element.replaceChildren(...[make()].flat());
}
