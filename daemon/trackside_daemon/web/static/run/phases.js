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
  return section("Time by phase", ({ attempt_list: list, goodput, lost = {}, mfu }) => {
    const found = totals(list);
    const ranks = Math.max(...list.map((one) => Object.keys(one.phases ?? {}).length));
    const under = [ranks > 1 ? `sum of ${ranks} ranks` : "", ...worth(goodput, lost, mfu)].filter(Boolean).join(", ");
    return { under, of: found, make: () => shown(found) };
  });
}

// The share of the time that was trained in, what most of the rest was lost to, and the model's FLOPs beside the GPUs'.
export function worth(goodput, lost, mfu) {
  const most = Object.entries(lost).filter(([, share]) => share >= 0.0005).sort(([, one], [, other]) => other - one);
  const causes = most.length ? ` (${most.map(([cause, share]) => `${cause} ${percent(share, 1)}`).join(", ")})` : "";
  return [goodput === undefined ? "" : `goodput ${percent(goodput, 1)}${causes}`, mfu === undefined ? "" : `MFU ${percent(mfu, 1)}`];
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
