// The time that a run spent in each phase, over all its ranks.

import { h, table } from "/static/dom.js";
import { section } from "/static/run/tables.js";
import { percent, span } from "/static/format.js";

const COLORS = 8;
const PHASES = ["data", "forward", "backward", "optimizer", "sync", "eval", "checkpoint", "other"];

// The color of a phase is the same on all pages; that of another name is its place.
export const phaseColor = (name, index) => (PHASES.includes(name) ? PHASES.indexOf(name) : index % COLORS);

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

function phaseTable(byPhase) {
  if (byPhase.length) return timeTable(byPhase, "Phase", "Time by phase");
  return h("p.quiet", {}, "No phases reported. Name them with run.phase(\"data\") or run.data(loader).");
}

// Returns a bar and a table of [name, seconds]; `about` describes the bar, and `total` is what they are shares of.
export function timeTable(times, heading, about, total = times.reduce((sum, [, seconds]) => sum + seconds, 0)) {
  const texts = times.map(([name, seconds]) => `${name} ${percent(seconds / total)}`);
  const parts = times.map(([, seconds], index) => {
    const part = h("span", { class: `run-phase phase-${phaseColor(times[index][0], index)}`, title: texts[index] });
    part.style.flexGrow = seconds / total;
    return part;
  });
  const lines = times.map(([name, seconds], index) => {
    const head = h("th.name", { scope: "row" }, h("span", { class: `run-key phase-${phaseColor(name, index)}` }), name);
    return h("tr", {}, head, h("td.number", {}, span(seconds)), h("td.number", {}, percent(seconds / total)));
  });
  const stack = h("div.run-stack", { role: "img", "aria-label": `${about}: ${texts.join(", ")}` }, parts);
  return h("div.run-phases", {}, stack, table([heading, ["Time", "number"], ["Share", "number"]], lines));
}
