// The training processes on this machine, by run and rank.

import { h, syncRows, setText } from "/static/dom.js";
import { bytes, number, runAddress, when } from "/static/format.js";

const STATES = { R: "running", S: "sleeping", D: "waiting for a device", Z: "zombie", T: "stopped", t: "traced", I: "idle", X: "dead" };
const HEADS = ["Rank", "Process", "Role", "State", ["Memory"], ["CPU time"], ["Threads", "wide"], [" Started", "wide"]];

export function processTable() {
  const table = h("table.processes", {}, h("thead", {}, h("tr", {}, HEADS.map(columnHead))));
  const groups = h("div.scroll", {}, table);
  const none = h("p.quiet", { hidden: true }, "No training processes run on this machine.");
  const bodies = new Map();
  return {
    root: h("div", {}, none, groups),
    update(processes) {
      groups.hidden = !processes.length;
      none.hidden = processes.length > 0;
      const runs = new Map();
      for (const process of processes) runs.set(process.run_id, [...(runs.get(process.run_id) ?? []), process]);
      for (const [id, body] of bodies) {
        if (!runs.has(id)) {
          body.remove();
          bodies.delete(id);
        }
      }
      for (const [id, ofRun] of runs) {
        if (!bodies.has(id)) {
          bodies.set(id, h("tbody"));
          table.append(bodies.get(id)); // Only once: a moved element loses the focus.
        }
        syncRows(bodies.get(id), [{ title: ofRun[0] }, ...ofRun], (process) => process.pid ?? "title", (process) => (process.title ? runHeading(process.title) : processRow(process)));
      }
    },
  };
}

function columnHead(process) {
  const [text, wide] = [process].flat();
  const right = Array.isArray(process) && text !== " Started" ? ".number" : "";
  return h(`th${right}${wide ? ".wide" : ""}`, { scope: "col" }, text.trim());
}

function runHeading(first) {
  return h("tr", {}, h("th.name", { scope: "rowgroup", colspan: HEADS.length }, h("a.clamp", { href: runAddress(first.run_id), title: first.run }, first.run)));
}

function processRow(first) {
  const [state, resident, cpu, threads] = [h("td"), h("td.number"), h("td.number"), h("td.number.wide")];
  const nameTag = first.role !== "rank" ? "td.below" : "td";
  const name = h(nameTag, {}, h("span.mono", {}, String(first.pid)), " ", first.comm);
  const started = h("td.wide", {}, when(first.started ?? NaN));
  const row = h("tr", {}, h("td", {}, String(first.rank)), name, h("td", {}, first.role), state, resident, cpu, threads, started);
  row.update = (process) => {
    setText(state, STATES[process.state] ?? process.state);
    state.className = process.state === "Z" || process.state === "D" ? "warn" : "";
    setText(resident, bytes(process.resident_bytes));
    setText(cpu, `${number(Number(process.cpu_seconds.toFixed(1)))} s`);
    setText(threads, number(process.threads));
  };
  return row;
}
