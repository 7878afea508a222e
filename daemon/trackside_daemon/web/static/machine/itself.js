// The daemon itself: what it is, where it listens and keeps things, and which of its parts do not go well.

import { h, rows, say } from "/static/dom.js";
import { badge, facts } from "/static/parts.js";
import { bytes, number, span, when } from "/static/words.js";

const FAILED = ["trackside_pipeline_failures_total", "trackside_ingest_rejected_total"];

export function daemonItself() {
  const known = facts();
  const body = h("tbody");
  const head = h("thead", {}, h("tr", {}, ["Part", "State", "Why"].map((one) => h("th", { scope: "col" }, one))));
  const parts = h("div.card.scroll", { tabindex: "0", role: "group", "aria-label": "Parts of the daemon" }, h("table", {}, head, body));
  return {
    root: h("div.pair", {}, h("div.card", {}, known), parts),
    told(status, now) {
      const [failures, rejected] = FAILED.map((name) => total(status.metrics[name]));
      known.told([
        ["Version", status.version],
        ["Up since", `${when(status.started)}${Number.isFinite(now) ? `, ${span(now - status.started)}` : ""}`],
        ["Address", status.url],
        ["Pushes arrive at", status.push_endpoints.join(", ")],
        ["Storage", status.storage_path],
        ["History", bytes(status.metrics.trackside_history_size_bytes)],
        ["Samples written", number(status.metrics.trackside_history_samples_total)],
        ["Messages refused", rejected ? number(rejected) : ""],
        ["Failures", failures ? number(failures) : ""],
      ]);
      rows(body, standings(status), ([name]) => name, line);
    },
  };
}

const total = (counts) => Object.values(counts ?? {}).reduce((sum, one) => sum + one, 0);

// What does not go well first; what is well has nothing to explain.
function standings(status) {
  const collectors = Object.entries(status.collectors).map(([name, one]) => [name, one.state, one.why ?? ""]);
  const sinks = Object.entries(status.notifications).map(([name, one]) => {
    return [`sink ${name}`, one.last_error ? "fails" : "ok", one.last_error || `${one.sent} sent`];
  });
  const order = (state) => ({ ok: 2, nothing: 1 })[state] ?? 0;
  return [...sinks, ...collectors].sort((one, other) => order(one[1]) - order(other[1]) || (one[0] < other[0] ? -1 : 1));
}

function line([name]) {
  const state = badge();
  const why = h("td.text.quiet");
  const row = h("tr", {}, h("th.name", { scope: "row" }, name), h("td", {}, state), why);
  row.told = ([, now, reason]) => {
    state.told({ ok: "finished", nothing: "info" }[now] ?? "warning", now === "nothing" ? "nothing there" : now);
    say(why, reason);
  };
  return row;
}
