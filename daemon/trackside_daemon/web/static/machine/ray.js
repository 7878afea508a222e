// Ray: the cluster, the nodes on this machine and the actors in its processes.

import { h, syncRows, setText, badge, facts, table } from "/static/dom.js";
import { bytes, number } from "/static/format.js";

const MAX_ACTORS = 100;
const BYTES = new Set(["memory", "object_store_memory"]);
const HEADS = { nodes: ["Node", "State", "CPUs in use", "GPUs in use", "Object store"],
  actors: ["Actor", "Class", "Role", "Process"] };

export function rayDetails() {
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
