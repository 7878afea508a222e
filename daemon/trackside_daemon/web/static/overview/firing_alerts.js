// The worst firing alerts; the Alerts page lists all of them.

import { MAX_ALERTS } from "/static/vocabulary.js";
import { h, syncRows, setText, badge, table } from "/static/dom.js";
import { ago, runAddress } from "/static/format.js";

const MAX_SHOWN = 5;

export function firingAlerts() {
  const body = h("tbody");
  const allLink = h("a", { href: "/alerts" });
  const list = table(["Severity", "Alert", ["Run", "wide"], "Summary", "Since"], body, "table.firing");
  const head = h("div.head", {}, h("h2", {}, "Alerts"), allLink);
  const root = h("section", { hidden: true }, head, h("div.scroll", {}, list));
  return {
    root,
    update({ alerts, time }) {
      root.hidden = !alerts.length;
      setText(allLink,
        alerts.length > MAX_SHOWN ? `All ${alerts.length}${alerts.length >= MAX_ALERTS ? "+" : ""}` : "All alerts");
      const worst = alerts.slice(0, MAX_SHOWN).map((alert) => ({ alert, time }));
      syncRows(body, worst, ({ alert }) => JSON.stringify([alert.alert, alert.run, alert.rank, alert.key, alert.gpu,
        alert.subject, alert.started]), alertRow);
    },
  };
}

function alertRow({ alert }) {
  const severity = badge();
  const name = h("a", {}, alert.alert);
  const summary = h("span.clamp");
  const since = h("td.since");
  const run = alert.run ? h("a.clamp", { href: runAddress(alert.run), title: alert.name }, alert.name) : undefined;
  const row = h("tr", {}, h("td.severity", {}, severity), h("td.alert", {}, name), h("td.text.wide", {}, run),
    h("td.text.summary", {}, summary), since);
  row.update = (newest) => {
    severity.update(newest.alert.severity);
    if (newest.alert.id !== null) name.setAttribute("href", `/alerts/${newest.alert.id}`);
    setText(summary, newest.alert.summary);
    summary.setAttribute("title", newest.alert.summary);
    setText(since, `${ago(newest.alert.started, newest.time)}${newest.alert.silenced ? ", silenced" : ""}`);
  };
  return row;
}
