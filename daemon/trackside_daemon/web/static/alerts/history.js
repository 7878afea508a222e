// The alerts that fire or have fired, the newest first, of those that are asked for.

import { ask, query } from "/static/api.js";
import { alone } from "/static/alerts/alone.js";
import { runLink, state } from "/static/alerts/words.js";
import { h, rows, say } from "/static/dom.js";
import { badge } from "/static/parts.js";
import { when } from "/static/words.js";

const PAGE = 50;
const COLUMNS = ["Severity", "Alert", "Run", "Began", "State"];

// Said in so many words, since on a phone the cells of a row stand below each other.
const CELL = { role: "cell" };

export function history(place) {
  let wanted = PAGE;
  const asked = { severity: place.query.get("severity") ?? "", alert: place.query.get("alert") ?? "", run: place.query.get("run") ?? "" };
  const body = h("tbody");
  const head = h("tr", {}, COLUMNS.map((one) => h("th", { scope: "col" }, one)));
  const table = h("div.scroll", {}, h("table.stacked.history", { role: "table", "aria-label": "History of alerts" }, h("thead", {}, head), body));
  const none = h("p.quiet", { role: "status" });
  const names = h("datalist", { id: "alert-names" });
  const more = h("button", { type: "button", onclick: () => {
    wanted += PAGE;
    load();
  } }, "Show more");
  const change = (name) => (event) => {
    asked[name] = event.target.value.trim();
    wanted = PAGE;
    place.set(asked);
    load();
  };
  const severity = h("select", { onchange: change("severity") }, h("option", { value: "" }, "any"), ...["critical", "warning", "info"].map((one) => h("option", { selected: one === asked.severity }, one)));
  const alert = h("input", { type: "search", list: "alert-names", value: asked.alert, onchange: change("alert"), placeholder: "name, * for any" });
  const run = h("input", { type: "search", value: asked.run, onchange: change("run"), placeholder: "name or id" });
  const tools = h("div.tools", { role: "search", "aria-label": "History" }, h("label", {}, "Severity", severity), h("label", {}, "Alert", alert, names), h("label", {}, "Run", run));

  const load = alone(async () => {
    try {
      const { alerts } = await ask(`alerts?${query({ ...asked, alert: pattern(asked.alert), evidence: false, limit: wanted + 1 })}`, { signal: place.signal });
      const found = alerts.reverse().slice(0, wanted);
      table.hidden = !found.length;
      none.hidden = found.length > 0;
      say(none, Object.values(asked).some(Boolean) ? "None fits." : "None yet. The daemon looks for NaN, spikes, stalls and more by itself.");
      more.hidden = alerts.length <= wanted;
      rows(body, found, (one) => one.id, row);
      for (const name of found.map((one) => one.alert)) {
        if (![...names.children].some((one) => one.value === name)) names.append(h("option", { value: name }));
      }
    } catch (problem) {
      if (place.signal.aborted) return;
      table.hidden = more.hidden = true;
      none.hidden = false;
      say(none, problem.message);
    }
  });
  return { root: h("div", {}, tools, none, table, more), load };
}

// A part of a name is enough; who writes a * or a ? means the whole.
function pattern(name) {
  return name && !/[*?]/.test(name) ? `*${name}*` : name;
}

function row(first) {
  const severity = badge(first.severity);
  const summary = h("p.quiet");
  const now = h("td.state", CELL);
  const made = h(
    "tr",
    { role: "row" },
    h("td.word", CELL, severity),
    h("td.text", CELL, h("a.named", { href: `/alerts/${first.id}` }, first.alert), summary),
    h("td.name", CELL, runLink(first)),
    h("td.began", CELL, when(first.started)),
    now,
  );
  made.told = (alert) => {
    severity.told(alert.severity);
    say(summary, alert.summary);
    say(now, state(alert));
  };
  return made;
}
