// The processes of the trainings on this machine, by run and rank.

import { h, rows, say } from "/static/dom.js";
import { bytes, number, runAddress, when } from "/static/words.js";

const STATES = { R: "running", S: "sleeping", D: "waiting for a device", Z: "zombie", T: "stopped", t: "traced", I: "idle", X: "dead" };
const HEADS = ["Rank", "Process", "Role", "State", ["Memory"], ["CPU time"], ["Threads", "wide"], [" Started", "wide"]];

export function processTable() {
  const table = h("table.processes", {}, h("thead", {}, h("tr", {}, HEADS.map(head))));
  const groups = h("div.scroll", {}, table);
  const none = h("p.quiet", { hidden: true }, "No process of a training is on this machine now.");
  const bodies = new Map();
  return {
    root: h("div", {}, none, groups),
    told(processes) {
      groups.hidden = !processes.length;
      none.hidden = processes.length > 0;
      const runs = new Map();
      for (const one of processes) runs.set(one.run_id, [...(runs.get(one.run_id) ?? []), one]);
      for (const [id, body] of bodies) {
        if (!runs.has(id)) {
          body.remove();
          bodies.delete(id);
        }
      }
      for (const [id, some] of runs) {
        if (!bodies.has(id)) {
          bodies.set(id, h("tbody"));
          table.append(bodies.get(id)); // Once: what is moved loses the focus.
        }
        rows(bodies.get(id), [{ title: some[0] }, ...some], (one) => one.pid ?? "title", (one) => (one.title ? heading(one.title) : line(one)));
      }
    },
  };
}

function head(one) {
  const [text, wide] = [one].flat();
  const right = Array.isArray(one) && text !== " Started" ? ".number" : "";
  return h(`th${right}${wide ? ".wide" : ""}`, { scope: "col" }, text.trim());
}

function heading(first) {
  return h("tr", {}, h("th.name", { scope: "rowgroup", colspan: HEADS.length }, h("a.clamp", { href: runAddress(first.run_id), title: first.run }, first.run)));
}

function line(first) {
  const [state, resident, cpu, threads] = [h("td"), h("td.number"), h("td.number"), h("td.number.wide")];
  const below = first.role !== "rank" ? "td.below" : "td";
  const name = h(below, {}, h("span.mono", {}, String(first.pid)), " ", first.comm);
  const started = h("td.wide", {}, when(first.started ?? NaN));
  const row = h("tr", {}, h("td", {}, String(first.rank)), name, h("td", {}, first.role), state, resident, cpu, threads, started);
  row.told = (one) => {
    say(state, STATES[one.state] ?? one.state);
    state.className = one.state === "Z" || one.state === "D" ? "warn" : "";
    say(resident, bytes(one.resident_bytes));
    say(cpu, `${number(Number(one.cpu_seconds.toFixed(1)))} s`);
    say(threads, number(one.threads));
  };
  return row;
}
