// The machine: host, GPUs, their last hour, processes and the daemon.

import { getJson } from "/static/api.js";
import { h, setText, syncRows, badge, facts, table } from "/static/dom.js";
import { gpuCards, gpuPause } from "/static/machine/gpu_cards.js";
import { hostDetails } from "/static/machine/host.js";
import { LastHour } from "/static/machine/last_hour.js";
import { SYSTEM_MS, poll } from "/static/polling.js";
import { processTable } from "/static/machine/processes.js";
import { bytes, number, span, when } from "/static/format.js";

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
  const errorLine = h("p.bad", { role: "alert", hidden: true });
  const pause = gpuPause(() => load(), address.signal);
  const lastHour = new LastHour(address);
  const body = h("div", { hidden: true },
    h("section", { "aria-labelledby": "host" }, h("h2", { id: "host" }, "Host"), host.root),
    h("section", { "aria-labelledby": "gpus" }, h("div.head", {}, h("h2", { id: "gpus" }, "GPUs"), pause.root),
      gpus.root),
    lastHour.root,
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
      const answers = await Promise.all(
        ["status", "processes"].map((path) => getJson(path, address.signal)));
      status = answers[0];
      processes.update(answers[1].processes);
      updateParts();
      errorLine.hidden = true;
    } catch (problem) {
      if (address.signal.aborted || problem.status === 401) return;
      setText(errorLine, problem.message);
      errorLine.hidden = false;
    }
  }

  poll(SYSTEM_MS, load, address.signal);
  return {
    root: h("div", {}, h("h1", {}, "System"), errorLine, body),
    update(newest) {
      overview = newest;
      lastHour.update();
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

function partRow([name]) {
  const state = badge();
  const why = h("td.text.quiet");
  const row = h("tr", {}, h("th.name", { scope: "row" }, name), h("td", {}, state), why);
  row.update = ([, now, reason]) => {
    state.update({ ok: "finished", nothing: "info" }[now] ?? "warning", now === "nothing" ? "absent" : now);
    setText(why, reason);
  };
  return row;
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

function node(first) {
  const state = badge();
  const [cpus, gpus, store] = [h("td"), h("td"), h("td")];
  const row = h("tr", {}, h("th.name.mono", { scope: "row", title: first.node }, first.node.slice(0, 12)),
    h("td", {}, state), cpus, gpus, store);
  row.update = ({ up, resources, store_used_bytes: used, store_bytes: size }) => {
    state.update(up ? "running" : "failed", up ? "up" : "ended");
    for (const [cell, name] of [[cpus, "CPU"], [gpus, "GPU"]]) {
      const { used: taken, available } = resources[name] ?? {};
      setText(cell, taken === undefined ? "" : `${number(taken)} of ${number(taken + (available ?? 0))}`);
    }
    setText(store, size === undefined ? "" : `${bytes(used)} of ${bytes(size)}`);
  };
  return row;
}

function actor() {
  const [name, kind, role, pid] = [h("th.name", { scope: "row" }), h("td"), h("td"), h("td.mono")];
  const row = h("tr", {}, name, kind, role, pid);
  row.update = (item) => [[name, item.ray_actor || "-"], [kind, item.ray_class], [role, item.role],
    [pid, item.pid]].forEach(([cell, text]) => setText(cell, text));
  return row;
}
