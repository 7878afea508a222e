// The alerts that fire or have fired, the newest first, of those that are asked for.

import { ask, query } from "/static/api.js";
import { badge, runLink, state } from "/static/alerts/words.js";
import { h, rows, say } from "/static/dom.js";
import { when } from "/static/words.js";

const PAGE = 50;
const MOST = 3200;
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
  const alert = h("input", { type: "search", list: "alert-names", value: asked.alert, onchange: change("alert") });
  const run = h("input", { type: "search", value: asked.run, onchange: change("run"), placeholder: "name or id" });
  const tools = h("div.tools", {}, h("label", {}, "Severity", severity), h("label", {}, "Alert", alert, names), h("label", {}, "Run", run));

  const load = alone(async () => {
    try {
      const { found, over } = await fitting(asked, wanted, place.signal);
      table.hidden = !found.length;
      none.hidden = found.length > 0;
      say(none, Object.values(asked).some(Boolean) ? "None fits." : "None yet. The daemon looks for NaN, spikes, stalls and more by itself.");
      more.hidden = over;
      rows(body, found, (one) => one.id, row);
      for (const name of found.map((one) => one.alert)) {
        if (![...names.children].some((one) => one.value === name)) names.append(h("option", { value: name }));
      }
      return found;
    } catch (problem) {
      if (place.signal.aborted) return [];
      table.hidden = more.hidden = true;
      none.hidden = false;
      say(none, problem.message);
      return [];
    }
  });
  return { root: h("div", {}, tools, none, table, more), load };
}

// The newest that fit, so many as wanted; the severity and the name are looked at here, the run by the daemon.
async function fitting({ severity, alert, run }, wanted, signal) {
  const begins = alert.toLowerCase();
  for (let limit = wanted; ; limit *= 4) {
    const { alerts } = await ask(`alerts?${query({ run, limit })}`, { signal });
    const found = alerts.reverse().filter((one) => (!severity || one.severity === severity) && one.alert.toLowerCase().includes(begins));
    const whole = alerts.length < limit;
    if (whole || found.length >= wanted || limit >= MOST) return { found: found.slice(0, wanted), over: whole && found.length <= wanted };
  }
}

// Does something one at a time: what is asked for meanwhile is done once, afterwards.
function alone(work) {
  let last = Promise.resolve();
  let waiting;
  return () => {
    waiting ??= last.then(() => {
      waiting = undefined;
      last = work();
      return last;
    });
    return waiting;
  };
}

function row(first) {
  const severity = h("td.word", CELL);
  const summary = h("p.quiet");
  const now = h("td.state", CELL);
  const made = h(
    "tr",
    { role: "row" },
    severity,
    h("td.text", CELL, h("a.named", { href: `/alerts/${first.id}` }, first.alert), summary),
    h("td.name", CELL, runLink(first)),
    h("td.began", CELL, when(first.started)),
    now,
  );
  made.told = (alert) => {
    if (!severity.textContent.endsWith(` ${alert.severity}`)) severity.replaceChildren(badge(alert.severity));
    say(summary, alert.summary);
    say(now, state(alert));
  };
  return made;
}
