// The alerts page: firing alerts, active silences, past alerts, and the starts and ends of runs.

import { alertPage } from "/static/alerts/detail.js";
import { getJson, query } from "/static/api.js";
import { coalesce } from "/static/polling.js";
import { alertHistory } from "/static/alerts/history.js";
import { openSilenceDialog } from "/static/alerts/silence_dialog.js";
import { silenceList } from "/static/alerts/silence_list.js";
import { openTestDialog } from "/static/alerts/test_alert.js";
import { h, setText, ENDED, badge, rerender, syncRows } from "/static/dom.js";
import { runAddress, span, when } from "/static/format.js";
import { labels } from "/static/picker.js";
import { MAX_ALERTS } from "/static/vocabulary.js";
import { runLink, since } from "/static/alerts/format.js";

export const title = "Alerts";

const RELOAD_OVERVIEWS = 10;

const RUNS = 30; // The newest runs, whose starts and ends are shown.
const SHOWN = 12;

const SUBJECT_LABELS = ["rank", "key", "gpu", "subject"];

export function show(/** @type {Address} */ address) {
  return address.parts.length ? alertPage(address) : alertsPage(address);
}

function alertsPage(/** @type {Address} */ address) {
  const status = h("p.said", { role: "status", tabindex: -1 });
  const onDone = async (text) => {
    setText(status, text);
    status.focus();
    await reload();
  };
  const firingPart = firingList(async (alert) => {
    const alertDetails = await getJson(`alerts/${alert.id}`).catch((problem) => setText(status, problem.message));
    if (alertDetails) openSilenceDialog({ alert: alertDetails.alert, ...alertDetails.labels }, onDone, address.signal);
  });
  const silencesPart = silenceList(onDone);
  const historyPart = alertHistory(address, () => {
    showFiring();
    timelinePart.load().catch(() => {}); // The frame reports the outage.
  });
  const timelinePart = runTimeline(address.signal, historyPart.matchesRun);
  let newest = { alerts: [] };
  let [lastAlerts, ticks] = ["", 0];
  let silenceEnds = new Map();

  const showFiring = () =>
    firingPart.update(newest.alerts.filter(historyPart.matches), silenceEnds, newest.time, newest.alerts.length > 0);

  // Reloads what the overview does not contain: the ends of silences, and past alerts.
  const reload = coalesce(async () => {
    const anySilenced = newest.alerts.some((alert) => alert.silenced);
    const paths = ["silences", ...(anySilenced ? ["alerts?firing=true&evidence=false"] : [])];
    const requests = paths.map((path) => getJson(path, address.signal));
    try {
      const [, , { silences }, firingAnswer] = await Promise.all([historyPart.load(), timelinePart.load(),
        ...requests]);
      silencesPart.update(silences);
      silenceEnds = new Map(firingAnswer?.alerts.map((alert) => [alert.id, alert.silenced_until]));
      showFiring();
    } catch {
      // The frame reports the outage.
    }
  });

  const silence = () => openSilenceDialog({ alert: "" }, onDone, address.signal);
  const buttons = [
    h("button", { onclick: silence }, "Silence…"),
    h("button", { onclick: () => openTestDialog(address.signal) }, "Send a test alert…"),
  ];
  const parts = [
    [h("h2", {}, "Firing"), firingPart.root],
    [h("h2", {}, "Silences"), silencesPart.root],
    [h("h2", {}, "History"), historyPart.root],
    [h("h2", {}, "Starts and ends of runs"), timelinePart.root],
  ];
  const head = h("div.tools.titled", {}, h("h1", {}, "Alerts"), h("span.grow"), buttons);
  const root = h("div.alerting", {}, head, status, historyPart.tools, parts);
  reload();
  const update = (/** @type {Overview} */ overview) => {
    newest = overview;
    showFiring();
    const seen = overview.alerts.map((alert) => [alert.id, alert.severity, alert.silenced, alert.summary]);
    const current = JSON.stringify(seen);
    ticks += 1;
    if (current !== lastAlerts || ticks % RELOAD_OVERVIEWS === 0) reload();
    lastAlerts = current;
  };
  return { root, update };
}

// `isShown(run)` is whether a run passes the filters of the page.
function runTimeline(signal, isShown) {
  const list = h("ol.timeline", { "aria-label": "Starts and ends of runs" });
  const emptyText = h("p.quiet", {}, "No runs.");
  const moreButton = h("button.small", { hidden: true, onclick: () => {
    limit = Infinity;
    show();
  } }, "Show more");
  let limit = SHOWN;
  let events = [];

  function show() {
    emptyText.hidden = events.length > 0;
    moreButton.hidden = events.length <= limit;
    const shown = events.slice(0, limit);
    rerender(list, JSON.stringify(shown), () => shown.map(row));
  }

  async function load() {
    const { runs } = await getJson(`runs?${query({ limit: RUNS })}`, signal);
    const names = labels(runs);
    events = runs.map((run, index) => ({ ...run, label: names[index] })).filter(isShown).flatMap(eventsOf)
      .sort((a, b) => b.time - a.time);
    show();
  }
  return { root: h("div", {}, emptyText, list, moreButton), load };
}

function eventsOf(run) {
  const { id, label, state, cause, started, ended } = run;
  const about = { id, label };
  const begin = { ...about, time: started, word: "started" };
  if (ended === null || ended === undefined || !ENDED.has(state)) return [begin];
  const reason = cause ? `: ${cause}` : "";
  return [{ ...about, time: ended, word: state, text: ` after ${span(Math.max(0, ended - started))}${reason}` }, begin];
}

function row({ id, label, time, word, text }) {
  const mark = badge(word === "started" ? "starting" : word, word);
  const rest = h("span.quiet");
  setText(rest, text ?? "");
  return h("li", {}, h("time.quiet", {}, when(time)), mark,
    h("span", {}, h("a", { href: runAddress(id) }, label), rest));
}

// `silenceEnds` maps alert ids to the end of their silence; `onSilence(alert)` opens the silence dialog.
function firingList(onSilence) {
  const emptyText = h("p.quiet");
  const list = h("ul.fires", { "aria-label": "Firing alerts" });
  const moreText = h("p.quiet", { hidden: true }, `These are the worst ${MAX_ALERTS}. There may be more.`);
  const update = (alerts, silenceEnds, now, anyFires) => {
    emptyText.hidden = alerts.length > 0;
    setText(emptyText, anyFires ? "No firing alert matches." : "No alerts are firing.");
    moreText.hidden = alerts.length < MAX_ALERTS;
    syncRows(list, alerts.map((alert) => ({ alert, now, until: silenceEnds.get(alert.id) })), ({ alert }) => key(alert),
      ({ alert }) => firingRow(alert, onSilence));
  };
  return { root: h("div", {}, emptyText, list, moreText), update };
}

function key(alert) {
  return JSON.stringify([alert.alert, alert.run, alert.started, ...SUBJECT_LABELS.map((name) => alert[name])]);
}

function firingRow(first, onSilence) {
  let newest = first;
  const severity = badge(first.severity);
  const name = h("a.named", {}, first.alert);
  const about = SUBJECT_LABELS.filter((name) => first[name] !== undefined).map((name) => `${name} ${first[name]}`);
  const summary = h("p");
  const began = h("span.quiet.when");
  const silent = h("span.quiet.when");
  const button = h("button", { "aria-label": `Silence ${first.alert}${first.name ? ` of ${first.name}` : ""}`,
    onclick: () => onSilence(newest) }, "Silence…");
  const description = h("div", {}, h("div.line", {}, name, runLink(first), h("span.quiet", {}, about.join(", "))),
    summary);
  const element = h("li", {}, severity, description, h("div.side", {}, began, silent, button));
  element.update = ({ alert, now, until }) => {
    newest = alert;
    severity.update(alert.severity);
    if (alert.id !== null) name.setAttribute("href", `/alerts/${alert.id}`);
    setText(summary, alert.summary);
    setText(began, `since ${since(alert.started, now)}`);
    setText(silent, until ? `silenced until ${when(until)}` : "silenced");
    silent.hidden = !alert.silenced;
    button.hidden = alert.silenced || alert.id === null;
    element.classList.toggle("silenced", alert.silenced);
  };
  return element;
}
