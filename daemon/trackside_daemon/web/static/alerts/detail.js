// One alert: its state, silences and notifications, and its evidence, which arrives some seconds later. Also those that
// have ended, newest first, by the filters of the page.

import { getJson, post, query } from "/static/api.js";
import { evidence, scalarEvidence } from "/static/alerts/evidence.js";
import { CELL, openSilenceDialog, endButton } from "/static/alerts/silence_dialog.js";
import { coalesce } from "/static/polling.js";
import {
  capital, expression, labelled, matchesSilence, silenceLabels, displayName, runLink, since, state, displayValue
} from "/static/alerts/format.js";
import { h, setText, badge, rerender, syncRows, table, withCode } from "/static/dom.js";
import { span, when } from "/static/format.js";
import { SEVERITIES } from "/static/vocabulary.js";

const PAGE = 50;
const COLUMNS = ["Severity", "Alert", "Run", "Began", "State"];

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
      syncRows(body, labelled(shown), (item) => item.id, row);
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
  return (!severity || item.severity === severity) && isOfRun(run, item.run, item.name) &&
    (!alert || expression(namePattern(alert)).test(item.alert));
}

// A part of a name is enough; a name with * or ? is a complete pattern.
function namePattern(name) {
  return name && !/[*?]/.test(name) ? `*${name}*` : name;
}

function row(first) {
  const severity = badge(first.severity);
  const summary = h("p.quiet");
  const stateCell = h("td.state", CELL);
  const run = runLink(first);
  const element = h("tr", { role: "row" },
    h("td.word", CELL, severity),
    h("td.text", CELL, h("a.named", { href: `/alerts/${first.id}` }, first.alert), summary),
    h("td.name", CELL, run),
    h("td.began", CELL, when(first.started)),
    stateCell);
  element.update = (alert) => {
    severity.update(alert.severity);
    if (run) setText(run, alert.label);
    setText(summary, alert.summary);
    setText(stateCell, state(alert));
  };
  return element;
}

// Evidence and notifications still arrive while the alert is this fresh.
const FRESH_SECONDS = 60;
const FRESH_RELOAD_SECONDS = 2;
const SETTLED_RELOAD_SECONDS = 15;

export async function alertPage(/** @type {Address} */ address) {
  const page = new AlertPage(address);
  await page.read();
  page.show();
  const { alert, name } = page.alert;
  return { root: page.root, update: (overview) => page.update(overview),
    title: `${alert}${name ? ` of ${name}` : ""}` };
}

class AlertPage {
  constructor(/** @type {Address} */ address) {
    this.signal = address.signal;
    this.id = encodeURIComponent(address.parts[0]);
    this.readAt = -Infinity;
    this.shown = [];
    this.status = h("p.said", { role: "status", tabindex: -1 });
    this.title = h("h1");
    this.heading = h("p.line");
    this.summary = h("p.lead");
    this.description = h("p.broken.quiet");
    this.about = h("dl.facts");
    this.silent = h("ul.silences");
    this.evidence = h("div");
    this.silenceButton = h("button.needs-write", { onclick: () => this.#silence() }, "Silence…");
    this.dismissButton = h("button.needs-write", { onclick: () => this.#dismiss() });
    const buttons = [h("span.grow"), this.dismissButton, this.silenceButton];
    const tools = h("div.tools.titled", {}, this.title, this.heading, buttons);
    const parts = [this.status, this.summary, this.description, this.silent, this.about, this.evidence];
    this.root = h("article.alerting", {}, h("p", {}, h("a", { href: "/alerts" }, "← Alerts")), tools, parts);
    this.reload = coalesce(() => this.read().then(() => this.show()).catch(() => {})); // The frame reports the outage.
  }

  async read() {
    const paths = [`alerts/${this.id}`, "silences"];
    const answers = await Promise.all(paths.map((path) => getJson(path, this.signal)));
    /** @type {Alert} */
    this.alert = answers[0];
    this.silences = answers[1].silences;
  }

  // Rebuilds only the parts that changed, so that the selection and the focus are kept.
  show() {
    const { alert } = this;
    const { labels, ended, notified, dismissed, severity } = alert;
    const matching = ended === null ? this.silences.filter((each) => matchesSilence(each.labels, alert)) : [];
    const parts = [
      [this.heading, () => [badge(severity), state(alert)], [severity, state(alert)]],
      [this.about, () => facts(alert), [labels, ended, notified, dismissed, scalarEvidence(alert)]],
      [this.silent, () => matching.map((each) => silenceLine(each, (text) => this.#done(text))), matching],
      [this.evidence, () => evidence(alert, this.signal), alert.evidence],
    ];
    for (const [element, make, of] of parts) rerender(element, JSON.stringify(of), make);
    setText(this.title, alert.alert);
    rerender(this.summary, alert.summary, () => withCode(alert.summary));
    rerender(this.description, alert.description, () => withCode(alert.description));
    this.description.hidden = !alert.description;
    setText(this.dismissButton, dismissed ? "Not a false alarm" : "False alarm");
    this.silenceButton.hidden = ended !== null || Boolean(alert.silenced_until);
    this.#tick();
  }

  update(/** @type {Overview} */ overview) {
    this.now = overview.time;
    this.#tick();
    const current = JSON.stringify(overview.alerts.find((each) => each.id === this.alert.id));
    const isFresh = this.now - (this.alert.ended ?? this.alert.started) < FRESH_SECONDS;
    const settledInterval = this.alert.ended === null ? SETTLED_RELOAD_SECONDS : Infinity;
    const isDue = this.now - this.readAt >= (isFresh ? FRESH_RELOAD_SECONDS : settledInterval);
    if (document.hidden || (current === this.lastSeen && !isDue)) return;
    this.lastSeen = current;
    this.readAt = this.now;
    this.reload();
  }

  #tick() {
    const began = this.about.querySelector(".began");
    if (began) setText(began, since(this.alert.started, this.now));
  }

  async #done(text) {
    setText(this.status, text);
    this.status.focus();
    await this.reload();
  }

  #silence() {
    const labels = { alert: this.alert.alert, ...this.alert.labels };
    openSilenceDialog(labels, (text) => this.#done(text), this.signal);
  }

  async #dismiss() {
    const dismissed = !this.alert.dismissed;
    try {
      await post(`alerts/${this.id}/dismiss`, { dismissed });
      const marked = "Marked as a false alarm. trackside tune proposes thresholds without it.";
      await this.#done(dismissed ? marked : "No longer marked as a false alarm.");
    } catch (problem) {
      setText(this.status, problem.message);
    }
  }
}

function silenceLine(silence, onDone) {
  const until = `until ${when(silence.until)}${silence.comment ? `: ${silence.comment}` : ""}`;
  const text = h("span", {}, "Silenced by ", silenceLabels(silence.labels), until);
  return h("li.line", {}, text, endButton(silence, onDone));
}

function facts(alert) {
  const labels = Object.entries(alert.labels).filter(([name]) => name !== "run");
  const comment = alert.dismissed?.comment;
  const entries = [
    ["Run", runLink(alert) ?? alert.labels.run],
    ...labels,
    ["Began", h("span.began")],
    ["Ended", alert.ended !== null && `${when(alert.ended)}, after ${span(Math.max(0, alert.ended - alert.started))}`],
    ["Notified", alert.notified.length ? alert.notified.join(", ") : "none yet"],
    ["Dismissed", alert.dismissed && `as a false alarm, ${when(alert.dismissed.time)}${comment ? `: ${comment}` : ""}`],
    ...scalarEvidence(alert).map(([name, value]) => [displayName(name), displayValue(name, value)]),
  ];
  return entries.filter(([, value]) => value)
    .flatMap(([name, value]) => [h("dt", {}, capital(name)), h("dd", {}, value)]);
}
