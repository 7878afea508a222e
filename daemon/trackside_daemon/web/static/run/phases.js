// What a run's time was spent on, of all its ranks.

import { h } from "/static/dom.js";
import { section } from "/static/run/tables.js";
import { percent, span } from "/static/words.js";

// Seconds by phase of some attempts, the most first.
export function totals(attempts) {
  const found = new Map();
  for (const { phases = {} } of attempts) {
    for (const [phase, seconds] of Object.values(phases).flatMap(Object.entries)) found.set(phase, (found.get(phase) ?? 0) + seconds);
  }
  return [...found].filter(([, seconds]) => seconds > 0).sort(([, one], [, other]) => other - one);
}

export function phases() {
  return section("Time by phase", ({ attempt_list: list }) => {
    const found = totals(list);
    const ranks = Math.max(...list.map((one) => Object.keys(one.phases ?? {}).length));
    return { under: ranks > 1 ? `sum of ${ranks} ranks` : "", of: found, make: () => shown(found) };
  });
}

function shown(found) {
  if (!found.length) return h("p.quiet", {}, "None told. Name them with run.phase(\"data\") or run.data(loader).");
  const all = found.reduce((sum, [, seconds]) => sum + seconds, 0);
  const parts = found.map(([, seconds], place) => {
    const part = h("span", { class: `run-phase phase-${place % 8}` });
    part.style.flexGrow = seconds / all;
    return part;
  });
  const words = found.map(([phase, seconds]) => `${phase} ${percent(seconds / all, 1)}`).join(", ");
  const lines = found.map(([phase, seconds], place) => {
    const name = h("th.name", { scope: "row" }, h("span", { class: `run-key phase-${place % 8}` }), phase);
    return h("tr", {}, name, h("td.number", {}, span(seconds)), h("td.number", {}, percent(seconds / all, 1)));
  });
  const head = h("tr", {}, h("th", { scope: "col" }, "Phase"), h("th.number", { scope: "col" }, "Time"), h("th.number", { scope: "col" }, "Share"));
  const stack = h("div.run-stack", { role: "img", "aria-label": `Time by phase: ${words}` }, parts);
  return h("div.run-phases", {}, stack, h("table", {}, h("thead", {}, head), h("tbody", {}, lines)));
}
