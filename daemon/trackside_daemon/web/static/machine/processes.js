// The processes on this machine that train or use a GPU: as a tree by run and rank, or sorted by a column.

import { post } from "/static/api.js";
import { confirmDialog } from "/static/confirm.js";
import { h, syncRows, setText, badge, scrollable, table, unseen } from "/static/dom.js";
import { bytes, number, percent, runAddress } from "/static/format.js";

const STATES = { R: "running", S: "sleeping", D: "waiting for a device", Z: "zombie", T: "stopped", t: "traced",
  I: "idle", X: "dead" };
const COLUMNS = [
  { id: "pid", title: "PID", value: (item) => item.pid },
  { id: "user", title: "User", value: (item) => item.user ?? "" },
  { id: "run", title: "Run: rank", value: (item) => (item.run ? `${item.run}: ${item.rank}` : "") },
  { id: "role", title: "Role", value: (item) => item.role, wide: true },
  { id: "state", title: "State", value: (item) => STATES[item.state] ?? item.state ?? "", wide: true },
  { id: "gpu", title: "GPU", value: (item) => item.gpus.map((gpu) => gpu.gpu).join(", ") },
  { id: "gpuMemory", title: "GPU memory", value: (item) => sum(item.gpus, "memory_bytes"), format: bytes,
    number: true },
  { id: "sm", title: "SM", value: (item) => sum(item.gpus, "sm_utilization_ratio"), format: percent, number: true },
  { id: "cpu", title: "CPU", value: (item) => item.cpu, format: percent, number: true },
  { id: "memory", title: "Memory", value: (item) => item.resident_bytes, format: bytes, number: true },
  { id: "command", title: "Command", value: (item) => item.command ?? item.comm ?? "", text: true },
];

// `signal` ends an open dialog. `onEnd()` is called after a process was asked to end.
export function processTable(signal, onEnd) {
  let order = { id: "tree", descending: false };
  let processes = [];
  const before = new Map(); // CPU seconds and the time of the reading before, by pid.
  const body = h("tbody");
  const heads = new Map(COLUMNS.map((column) => [column.id, sortButton(column)]));
  const tree = h("input", { type: "checkbox", checked: true,
    onchange: () => choose(tree.checked ? "tree" : "gpuMemory") });
  const columns = COLUMNS.map((column) => [heads.get(column.id), classes(column)]);
  const groups = scrollable("Processes", table([...columns, unseen("End")], body, "table.processes"));
  const none = h("p.quiet", { hidden: true }, "No training processes run on this machine.");
  const error = h("p.bad", { role: "alert", hidden: true });

  function sortButton(column) {
    return h("button.sort", { title: `Sort by ${column.title}`, onclick: () => choose(column.id) }, column.title);
  }

  function choose(id) {
    order = { id,
      descending: order.id === id ? !order.descending : COLUMNS.some((column) => column.id === id && column.number) };
    tree.checked = id === "tree";
    const arrow = order.descending ? " ↓" : " ↑";
    for (const { id: name, title } of COLUMNS) setText(heads.get(name), name === id ? title + arrow : title);
    show();
  }

  function show() {
    const column = COLUMNS.find((item) => item.id === order.id);
    const sign = order.descending ? -1 : 1;
    const compared = (a, b) => sign * compare(column.value(a), column.value(b));
    const shown = column ? processes.toSorted(compared) : processes;
    syncRows(body, shown, (item) => item.pid, (item) => processRow(item, end));
  }

  async function end(item) {
    if (!(await confirmDialog(`End process ${item.pid}?`, explanation(item), "End process", signal))) return;
    try {
      await post(`processes/${item.pid}/end`, { started: item.started });
      error.hidden = true;
    } catch (problem) {
      setText(error, problem.message);
      error.hidden = false;
    }
    onEnd();
  }

  return {
    root: h("div", {}, none, error, h("div.tools", {}, h("label", {}, tree, "As a tree")), groups),
    update(newest) {
      const now = performance.now() / 1000;
      processes = newest.map((item) => {
        const last = before.get(item.pid);
        const cpu = last && item.cpu_seconds !== undefined && now > last.at + 0.5
          ? (item.cpu_seconds - last.seconds) / (now - last.at) : last?.cpu;
        before.set(item.pid, { seconds: item.cpu_seconds, at: now, cpu });
        return { ...item, cpu };
      });
      groups.hidden = !processes.length;
      none.hidden = processes.length > 0;
      show();
    },
  };
}

function explanation(item) {
  const owner = item.run ? `It belongs to rank ${item.rank} of ${item.run}.` : "";
  return `${item.command ?? item.comm} gets SIGTERM. ${owner} A training saves nothing unless it handles the signal.`;
}

const sum = (list, name) => (list.some((item) => item[name] !== undefined)
  ? list.reduce((total, item) => total + (item[name] ?? 0), 0) : undefined);

function compare(a, b) {
  if (a === undefined || b === undefined) return Number(a === undefined) - Number(b === undefined);
  return typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
}

const classes = (column) => ["number", "wide"].filter((name) => column[name]).join(".");

function processRow(first, end) {
  const cells = COLUMNS.map((column) => h(["td", classes(column), column.text && "command"].filter(Boolean).join(".")));
  const at = Object.fromEntries(COLUMNS.map((column, index) => [column.id, cells[index]]));
  at.pid.append(h("span.mono", {}, String(first.pid)));
  at.pid.classList.toggle("below", first.role === "dataloader" || first.role === "other");
  if (first.run) at.run.append(h("a", { href: runAddress(first.run_id), title: first.run }, first.run),
    `: ${first.rank}`);
  if (first.role === "gpu") at.role.append(badge("info", "not a training"));
  const button = first.run
    ? h("button.small", { "aria-label": `End process ${first.pid}`, onclick: () => end(first) }, "End")
    : "";
  const row = h("tr", {}, cells, h("td", {}, button));
  row.update = (item) => {
    for (const [index, column] of COLUMNS.entries()) {
      if (["pid", "run"].includes(column.id) || (column.id === "role" && item.role === "gpu")) continue;
      const value = column.value(item);
      const format = column.format ?? (typeof value === "number" ? number : String);
      setText(cells[index], format(value));
      if (column.text) cells[index].title = value;
    }
    at.state.classList.toggle("warn", item.state === "Z" || item.state === "D");
  };
  return row;
}
