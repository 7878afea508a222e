// The alerts page: firing alerts, active silences, past alerts, and the starts and ends of runs.

import { alertPage, alertHistory } from "/static/alerts/detail.js";
import { getJson, query, post } from "/static/api.js";
import { coalesce } from "/static/polling.js";
import { openSilenceDialog, silenceList } from "/static/alerts/silence_dialog.js";
import { h, setText, ENDED, badge, rerender } from "/static/dom.js";
import { runAddress, span, when } from "/static/format.js";
import { labels } from "/static/picker.js";
import { SEVERITIES } from "/static/vocabulary.js";
import { firingList } from "/static/alerts/firing.js";
import { openDialog } from "/static/confirm.js";

export const title = "Alerts";

const RELOAD_OVERVIEWS = 10;

const RUNS = 12; // The newest runs, whose starts and ends are shown.

const FIRE_SECONDS = 10;
const POLL_MILLISECONDS = 300;

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
    h("button.needs-write", { onclick: silence }, "Silence…"),
    h("button.needs-write", { onclick: () => openTestDialog(address.signal) }, "Send a test alert…"),
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

  async function load() {
    const { runs } = await getJson(`runs?${query({ limit: RUNS })}`, signal);
    const names = labels(runs);
    const events = runs.map((run, index) => ({ ...run, label: names[index] })).filter(isShown).flatMap(eventsOf)
      .sort((a, b) => b.time - a.time);
    emptyText.hidden = events.length > 0;
    rerender(list, JSON.stringify(events), () => events.map(row));
  }
  return { root: h("div", {}, emptyText, list), load };
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

// The dialog that raises a test alert and shows where the notification arrived.
function openTestDialog(signal) {
  const severity = h("select", {}, ...SEVERITIES.map((name) => h("option", { selected: name === "warning" }, name)));
  const run = h("input", { type: "text", maxlength: 256, placeholder: "None: about the machine" });
  const results = h("ul.heard", { role: "status" });
  const report = (text, kind = "quiet") => results.appendChild(h(`li.${kind}`, {}, text));
  const submit = async () => {
    results.replaceChildren();
    const ended = new AbortController();
    root.addEventListener("close", () => ended.abort());
    setText(cancel, "Close");
    await sendTest({ severity: severity.value, run: run.value.trim() }, report, ended.signal);
  };
  const { root, cancel } = openDialog("Send a test alert", { content: [
    h("p.quiet", {},
      "TestAlert takes the same path as every alert: this page, the history, and each sink in alerts.sinks."),
    h("label.whole", {}, "Severity", severity),
    h("label.whole", {}, "Run", run),
    results,
  ], submit, action: "Send" }, signal);
}

async function sendTest(request, report, signal) {
  const { test } = await post("alerts/test", request);
  const alert = await findAlert(test, signal);
  if (signal.aborted) return;
  if (!alert) throw new Error("TestAlert does not fire. Check alerts.off and the daemon's log.");
  report(h("span", {}, "Firing as ", h("a", { href: `/alerts/${alert.id}` }, `alert ${alert.id}`),
    "; Prometheus sees it for 2 minutes."));
  if (alert.silenced_until) return void report(
    `A silence mutes it until ${when(alert.silenced_until)}, so no notification is sent.`, "warning");
  follow(alert.id, report(""), signal).catch(() => {}); // The frame reports the outage.
}

// Shows which sinks have an alert, and what is wrong with the others, until the dialog is closed.
async function follow(id, line, signal) {
  for (; !signal.aborted; await pause()) {
    const { notified } = await getJson(`alerts/${id}`);
    const { notifications } = await getJson("status");
    const failing = Object.entries(notifications).filter(([name, sink]) => sink.last_error && !notified.includes(name))
      .map(([name, sink]) => `. ${name} fails: ${sink.last_error}`);
    const others = Object.keys(notifications).some((name) => name !== "log") ? "" : " No other sink is configured.";
    setText(line, `Delivered to ${notified.join(", ") || "no sink yet"}${failing.join("")}.${others}`);
  }
}

async function findAlert(test, signal) {
  for (const until = Date.now() + 1000 * FIRE_SECONDS; Date.now() < until && !signal.aborted; await pause()) {
    const { alerts } = await getJson(`alerts?${query({ limit: 20 })}`);
    const match = alerts.find((alert) => alert.labels.test === test);
    if (match) return match;
  }
  return undefined;
}

const pause = () => new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
