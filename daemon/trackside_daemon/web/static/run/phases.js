// The time that a run spent in each phase, over all its ranks.

import { h, table } from "/static/dom.js";
import { section } from "/static/run/tables.js";
import { percent, span } from "/static/format.js";

// Returns [phase, seconds] summed over some attempts, the longest first.
export function totals(attempts) {
  const byPhase = new Map();
  for (const { phases = {} } of attempts) {
    for (const [phase, seconds] of Object.values(phases).flatMap(Object.entries))
      byPhase.set(phase, (byPhase.get(phase) ?? 0) + seconds);
  }
  return [...byPhase].filter(([, seconds]) => seconds > 0).sort(([, a], [, b]) => b - a);
}

export function phases() {
  return section("Time by phase", ({ attempt_list: list }) => {
    const byPhase = totals(list);
    const ranks = Math.max(...list.map((item) => Object.keys(item.phases ?? {}).length));
    return { note: ranks > 1 ? `sum of ${ranks} ranks` : "", content: byPhase, make: () => phaseTable(byPhase) };
  });
}

// Returns a bar and a table of seconds by phase, or by what else the heading names.
export function phaseTable(byPhase, heading = "Phase") {
  if (!byPhase.length) return h("p.quiet", {},
    "No phases reported. Name them with run.phase(\"data\") or run.data(loader).");
  const total = byPhase.reduce((sum, [, seconds]) => sum + seconds, 0);
  const parts = byPhase.map(([, seconds], index) => {
    const part = h("span", { class: `run-phase phase-${index % 8}` });
    part.style.flexGrow = seconds / total;
    return part;
  });
  const description = byPhase.map(([phase, seconds]) => `${phase} ${percent(seconds / total)}`).join(", ");
  const lines = byPhase.map(([phase, seconds], index) => {
    const name = h("th.name", { scope: "row" }, h("span", { class: `run-key phase-${index % 8}` }), phase);
    return h("tr", {}, name, h("td.number", {}, span(seconds)), h("td.number", {}, percent(seconds / total)));
  });
  const stack = h("div.run-stack", { role: "img", "aria-label": `Time by ${heading.toLowerCase()}: ${description}` },
    parts);
  return h("div.run-phases", {}, stack, table([heading, ["Time", "number"], ["Share", "number"]], lines));
}
