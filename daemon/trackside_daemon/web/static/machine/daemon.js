// The daemon's version, addresses and storage, and the state of its parts.

import { h, syncRows, setText, badge, facts, table } from "/static/dom.js";
import { bytes, number, span, when } from "/static/format.js";

const FAILURE_METRICS = ["trackside_pipeline_failures_total", "trackside_ingest_rejected_total"];

export function daemonDetails() {
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
