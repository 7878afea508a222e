// The worst of the alerts that fire; all of them are on the page of alerts.

import { h, rows, say } from "/static/dom.js";
import { badge } from "/static/parts.js";
import { ago, runAddress } from "/static/words.js";

const MOST = 5;
// So many does the overview tell at most.
const TOLD = 200;

export function firing() {
  const body = h("tbody");
  const all = h("a", { href: "/alerts" });
  const heads = ["Severity", "Alert", "Run", "Summary", "Since"].map((one) => h(one === "Run" ? "th.wide" : "th", { scope: "col" }, one));
  const table = h("table.firing", {}, h("thead", {}, h("tr", {}, heads)), body);
  const root = h("section", { hidden: true }, h("div.head", {}, h("h2", {}, "Alerts"), all), h("div.scroll", {}, table));
  return {
    root,
    told({ alerts, time }) {
      root.hidden = !alerts.length;
      say(all, alerts.length > MOST ? `All ${alerts.length}${alerts.length >= TOLD ? "+" : ""}` : "All alerts");
      const worst = alerts.slice(0, MOST).map((alert) => ({ alert, time }));
      rows(body, worst, ({ alert }) => JSON.stringify([alert.alert, alert.run, alert.rank, alert.key, alert.gpu, alert.subject, alert.started]), line);
    },
  };
}

function line({ alert }) {
  const severity = badge();
  const name = h("a", {}, alert.alert);
  const summary = h("span.clamp");
  const since = h("td.since");
  const run = alert.run ? h("a.clamp", { href: runAddress(alert.run), title: alert.name }, alert.name) : undefined;
  const row = h("tr", {}, h("td.severity", {}, severity), h("td.alert", {}, name), h("td.text.wide", {}, run), h("td.text.summary", {}, summary), since);
  row.told = (now) => {
    severity.told(now.alert.severity);
    if (now.alert.id !== null) name.setAttribute("href", `/alerts/${now.alert.id}`);
    say(summary, now.alert.summary);
    summary.setAttribute("title", now.alert.summary);
    say(since, `${ago(now.alert.started, now.time)}${now.alert.silenced ? ", silenced" : ""}`);
  };
  return row;
}
