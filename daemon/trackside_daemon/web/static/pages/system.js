// The machine: host, GPUs, both over time, processes and the daemon.

import { getJson, post } from "/static/api.js";
import { h, liveRow, setText, syncRows, badge, facts, table, scrollable, unseen } from "/static/dom.js";
import { gpuCards, gpuPause } from "/static/machine/gpu_cards.js";
import { hostDetails } from "/static/machine/host.js";
import { OverTime } from "/static/machine/over_time.js";
import { SYSTEM_MS, poll } from "/static/polling.js";
import { bytes, number, span, when, percent, runAddress, usedOfTotal } from "/static/format.js";
import { sorted } from "/static/runs/columns.js";
import { confirmDialog } from "/static/confirm.js";

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
  const error = h("p.bad", { role: "alert" });

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
    const shown = column ? sorted(processes, column, order.descending) : processes;
    syncRows(body, shown, (item) => item.pid, (item) => processRow(item, end));
  }

  async function end(item) {
    if (!(await confirmDialog(`End process ${item.pid}?`, explanation(item), "End process", signal))) return;
    try {
      await post(`processes/${item.pid}/end`, { started: item.started });
      setText(error, "");
    } catch (problem) {
      setText(error, problem.message);
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
    ? h("button.small.needs-admin", { "aria-label": `End process ${first.pid}`, onclick: () => end(first) }, "End")
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

export const title = "System";

const FAILURE_METRICS = ["trackside_pipeline_failures_total", "trackside_ingest_rejected_total"];

const MAX_ACTORS = 100;
const BYTES = new Set(["memory", "object_store_memory"]);
const HEADS = { nodes: ["Node", "State", "CPUs in use", "GPUs in use", "Object store"],
  actors: ["Actor", "Class", "Role", "Process"] };

export function show(/** @type {Address} */ address) {
  const [host, gpus, ray, processes, daemon] = [hostDetails(), gpuCards(), rayDetails(),
    processTable(address.signal, () => load()), daemonDetails()];
  const raySection = h("section", { "aria-labelledby": "ray", hidden: true }, h("h2", { id: "ray" }, "Ray"), ray.root);
  const errorLine = h("p.bad", { role: "alert" });
  const pause = gpuPause(() => load(), address.signal);
  const overTime = new OverTime(address);
  const body = h("div", { hidden: true },
    h("section", { "aria-labelledby": "host" }, h("h2", { id: "host" }, "Host"), host.root),
    h("section", { "aria-labelledby": "gpus" }, h("div.head", {}, h("h2", { id: "gpus" }, "GPUs"), pause.root),
      gpus.root),
    overTime.root,
    raySection,
    h("section", { "aria-labelledby": "processes" }, h("h2", { id: "processes" }, "Processes"), processes.root),
    h("section", { "aria-labelledby": "daemon" }, h("h2", { id: "daemon" }, "Daemon"), daemon.root));
  let overview;
  let status;

  function updateParts() {
    if (!status || !overview) return;
    host.update(overview);
    gpus.update(overview.gpus, status);
    raySection.hidden = !overview.ray;
    if (overview.ray) ray.update(overview.ray);
    pause.update(status);
    daemon.update(status, overview.time);
    body.hidden = false;
  }

  async function load() {
    try {
      const answers = await Promise.all(["status", "processes"].map((path) => getJson(path, address.signal)));
      status = answers[0];
      processes.update(answers[1].processes);
      updateParts();
      setText(errorLine, "");
    } catch (problem) {
      if (address.signal.aborted || problem.status === 401) return;
      setText(errorLine, problem.message);
    }
  }

  poll(SYSTEM_MS, load, address.signal);
  return {
    root: h("div", {}, h("h1", {}, "System"), errorLine, body),
    update(newest) {
      overview = newest;
      overTime.update();
      updateParts();
    },
  };
}

function daemonDetails() {
  const details = facts();
  const body = h("tbody");
  const states = table(["Part", "State", "Reason"], body);
  const healthy = facts();
  const parts = h("div.card.scroll", { tabindex: "0", role: "group", "aria-label": "Parts of the daemon" }, states,
    healthy);
  return {
    root: h("div.pair", {}, h("div.card", {}, details), parts),
    update(status, now) {
      const [failures, rejected] = FAILURE_METRICS.map((name) => total(status.metrics[name]));
      details.update([
        ["Version", status.version],
        ["Up since", `${when(status.started)}${Number.isFinite(now) ? `, ${span(now - status.started)}` : ""}`],
        ["Address", status.url],
        ["Push endpoints", status.push_endpoints.join(", ")],
        ["Storage", status.storage_path],
        ["History", bytes(status.metrics.trackside_history_size_bytes)],
        ["Samples written", number(status.metrics.trackside_history_samples_total)],
        ["Rejected messages", rejected ? number(rejected) : ""],
        ["Failures", failures ? number(failures) : ""],
      ]);
      const all = partStates(status);
      const explained = all.filter(([, state, reason]) => state !== "ok" || reason);
      states.hidden = !explained.length;
      syncRows(body, explained, ([name]) => name, partRow);
      healthy.update([["Working", all.filter((part) => !explained.includes(part)).map(([name]) => name).join(", ")]]);
    },
  };
}

const total = (counts) => Object.values(counts ?? {}).reduce((sum, item) => sum + item, 0);

// Parts with problems come first; most healthy parts have no reason.
function partStates(status) {
  const collectors = Object.entries(status.collectors).map(([name, item]) => [name, item.state, item.why ?? ""]);
  const sinks = Object.entries(status.notifications).map(([name, item]) => {
    return [`sink ${name}`, item.last_error ? "failing" : "ok", item.last_error || `${item.sent} sent`];
  });
  const order = (state) => ({ ok: 2, nothing: 1 })[state] ?? 0;
  return [...sinks, ...collectors].sort((a, b) => order(a[1]) - order(b[1]) || (a[0] < b[0] ? -1 : 1));
}

function partRow() {
  const state = badge();
  return liveRow(["th.name", "td", "td.text.quiet"], ([name, now, reason]) => {
    state.update({ ok: "finished", nothing: "info" }[now] ?? "warning", now === "nothing" ? "absent" : now);
    return [name, state, reason];
  });
}

function rayDetails() {
  const summary = facts();
  const [nodes, actors] = [h("tbody"), h("tbody")];
  const card = (label, name, body) =>
    h("div.card.scroll", { tabindex: 0, role: "group", "aria-label": label }, table(HEADS[name], body));
  const [nodeTable, actorTable] = [card("Nodes of Ray", "nodes", nodes), card("Actors of Ray", "actors", actors)];
  return {
    root: h("div.pair", {}, h("div.card", {}, summary), nodeTable, actorTable),
    update(ray) {
      summary.update([
        ["Cluster", Object.entries(ray.cluster).map(([name, amount]) =>
          `${BYTES.has(name) ? bytes(amount) : number(amount)} ${name.replaceAll("_", " ")}`).join(", ")],
        ...["nodes", "actors", "tasks"].map((name) => [name[0].toUpperCase() + name.slice(1), counts(ray[name])]),
        ["Restarts of actors", ray.restarts ? number(ray.restarts) : ""],
      ]);
      nodeTable.hidden = !ray.local_nodes.length;
      actorTable.hidden = !ray.local_actors.length;
      syncRows(nodes, ray.local_nodes, (item) => item.node, node);
      syncRows(actors, ray.local_actors.slice(0, MAX_ACTORS), (item) => item.pid, actor);
    },
  };
}

const counts = (states) => Object.entries(states ?? {}).filter(([, count]) => count)
  .map(([state, count]) => `${count} ${state.replaceAll("_", " ")}`).join(", ");

function node() {
  const state = badge();
  const ofAll = ({ used = undefined, available = 0 } = {}) =>
    (used === undefined ? "" : `${number(used)} of ${number(used + available)}`);
  return liveRow(["th.name.mono", "td", "td", "td", "td"], ({ node: id, up, resources, ...store }, row) => {
    state.update(up ? "running" : "failed", up ? "up" : "ended");
    row.firstChild.title = id;
    return [id.slice(0, 12), state, ofAll(resources.CPU), ofAll(resources.GPU),
      usedOfTotal(store.store_used_bytes, store.store_bytes)];
  });
}

const actor = () => liveRow(["th.name", "td", "td", "td.mono"], (item) =>
  [item.ray_actor || "-", item.ray_class, item.role, item.pid]);
