// The alerts that have ended, newest first. The filters are those of the page: they also apply to the alerts that fire.

import { SEVERITIES } from "/static/vocabulary.js";
import { getJson, query } from "/static/api.js";
import { coalesce } from "/static/polling.js";
import { runLink, state } from "/static/alerts/format.js";
import { h, syncRows, setText, badge, table } from "/static/dom.js";
import { when } from "/static/format.js";

const PAGE = 50;
const COLUMNS = ["Severity", "Alert", "Run", "Began", "State"];

// Explicit roles: on a phone the cells of a row are stacked, which removes the table's implicit roles.
const CELL = { role: "cell" };

// `onFilter()` is called when the user changes a filter.
export function alertHistory(address, onFilter) {
  let limit = PAGE;
  const filters = { severity: address.query.get("severity") ?? "", alert: address.query.get("alert") ?? "",
    run: address.query.get("run") ?? "" };
  const body = h("tbody");
  const about = { role: "table", "aria-label": "History of alerts" };
  const list = h("div.scroll", {}, table(COLUMNS, body, "table.stacked.history", about));
  const emptyText = h("p.quiet", { role: "status" });
  const names = h("datalist", { id: "alert-names" });
  const moreButton = h("button", { onclick: () => {
    limit += PAGE;
    load();
  } }, "Show more");
  const change = (name) => (event) => {
    filters[name] = event.target.value.trim();
    limit = PAGE;
    address.set(filters);
    onFilter();
    load();
  };
  const severity = h("select", { onchange: change("severity") }, h("option", { value: "" }, "any"),
    ...SEVERITIES.toReversed().map((item) => h("option", { selected: item === filters.severity }, item)));
  const alert = h("input", { type: "search", list: "alert-names", value: filters.alert, onchange: change("alert"),
    placeholder: "name, * for any" });
  const run = h("input", { type: "search", value: filters.run, onchange: change("run"), placeholder: "name or id" });
  const tools = h("div.tools", { role: "search", "aria-label": "Alerts" }, h("label", {}, "Severity", severity),
    h("label", {}, "Alert", alert, names), h("label", {}, "Run", run));

  const load = coalesce(async () => {
    try {
      const alert = namePattern(filters.alert);
      const search = query({ ...filters, alert, firing: false, evidence: false, limit: limit + 1 });
      const { alerts } = await getJson(`alerts?${search}`, address.signal);
      const shown = alerts.reverse().slice(0, limit);
      list.hidden = !shown.length;
      emptyText.hidden = shown.length > 0;
      setText(emptyText, Object.values(filters).some(Boolean)
        ? "No alerts match."
        : "No past alerts. The daemon detects NaN, spikes, stalls and more without configuration.");
      moreButton.hidden = alerts.length <= limit;
      syncRows(body, shown, (item) => item.id, row);
      for (const name of shown.map((item) => item.alert)) {
        if (![...names.children].some((item) => item.value === name)) names.append(h("option", { value: name }));
      }
    } catch (problem) {
      if (address.signal.aborted) return;
      list.hidden = moreButton.hidden = true;
      emptyText.hidden = false;
      setText(emptyText, problem.message);
    }
  });
  return { root: h("div", {}, emptyText, list, moreButton), tools, load, matches: (item) => matches(item, filters),
    matchesRun: ({ id, name }) => isOfRun(filters.run, id, name) };
}

const isOfRun = (wanted, id, name) => !wanted || [id, name].includes(wanted);

// Whether an alert of the overview passes the filters, as the API applies them to past alerts.
function matches(item, { severity, alert, run }) {
  const escaped = namePattern(alert).replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".");
  return (!severity || item.severity === severity) && isOfRun(run, item.run, item.name) &&
    (!alert || new RegExp(`^${escaped}$`).test(item.alert));
}

// A part of a name is enough; a name with * or ? is a complete pattern.
function namePattern(name) {
  return name && !/[*?]/.test(name) ? `*${name}*` : name;
}

function row(first) {
  const severity = badge(first.severity);
  const summary = h("p.quiet");
  const stateCell = h("td.state", CELL);
  const element = h("tr", { role: "row" },
    h("td.word", CELL, severity),
    h("td.text", CELL, h("a.named", { href: `/alerts/${first.id}` }, first.alert), summary),
    h("td.name", CELL, runLink(first)),
    h("td.began", CELL, when(first.started)),
    stateCell);
  element.update = (alert) => {
    severity.update(alert.severity);
    setText(summary, alert.summary);
    setText(stateCell, state(alert));
  };
  return element;
}
