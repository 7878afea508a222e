// The dialog that raises a test alert and shows where the notification arrived.

import { SEVERITIES } from "/static/vocabulary.js";
import { getJson, post, query } from "/static/api.js";
import { openDialog } from "/static/confirm.js";
import { h, setText } from "/static/dom.js";
import { number, when } from "/static/format.js";

const FIRE_SECONDS = 10;
const WAIT_SECONDS = 30;
const POLL_MILLISECONDS = 300;

export function openTestDialog(signal) {
  const severity = h("select", {}, ...SEVERITIES.map((name) => h("option", { selected: name === "warning" }, name)));
  const run = h("input", { type: "text", maxlength: 256, placeholder: "None: about the machine" });
  const results = h("ul.heard", { role: "status" });
  const report = (text, kind = "quiet") => results.append(h(`li.${kind}`, {}, text));
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
  const sinks = (await getJson("status")).notifications ?? {};
  const sentAt = Date.now();
  const { test } = await post("alerts/test", request);
  const alert = await findAlert(request.run, test, signal);
  if (signal.aborted) return;
  if (!alert) throw new Error("TestAlert does not fire. Check alerts.off and the daemon's log.");
  report(h("span", {}, "Firing as ", h("a", { href: `/alerts/${alert.id}` }, `alert ${alert.id}`),
    "; Prometheus sees it for 2 minutes."));
  if (alert.silenced_until) return void report(
    `A silence mutes it until ${when(alert.silenced_until)}, so no notification is sent.`, "warning");
  const log = "log" in sinks ? ", it only writes its log" : "";
  if (Object.keys(sinks).every((name) => name === "log"))
    report(`No sink is configured (alerts.sinks): the daemon sends no notifications${log}.`);
  await awaitDelivery(alert, sinks, sentAt, report, signal);
}

async function findAlert(run, test, signal) {
  for (const until = Date.now() + 1000 * FIRE_SECONDS; Date.now() < until && !signal.aborted; await pause()) {
    const { alerts } = await getJson(`alerts?${query({ limit: 20 })}`);
    const match = alerts.find((alert) => alert.labels.test === test);
    if (match) return match;
  }
  return undefined;
}

async function awaitDelivery(alert, before, sentAt, report, signal) {
  const pending = new Set(Object.keys(before).filter((name) => isAccepted(name, before[name], alert.severity, report)));
  for (; pending.size && !signal.aborted; await pause()) {
    const { notified } = await getJson(`alerts/${alert.id}`);
    const now = (await getJson("status")).notifications ?? {};
    const elapsed = (Date.now() - sentAt) / 1000;
    for (const name of [...pending]) {
      const error = now[name]?.last_error ?? "no error reported; check the daemon's log";
      if (notified.includes(name)) report(`${name}: delivered after ${number(elapsed, 2)} s`, "good");
      else if ((now[name]?.dropped ?? 0) > before[name].dropped && !now[name]?.queued)
        report(`${name}: not delivered, retries ended: ${error}`, "bad");
      else if (elapsed >= WAIT_SECONDS) report(`${name}: not delivered within ${WAIT_SECONDS} s: ${error}`, "bad");
      else continue;
      pending.delete(name);
    }
  }
}

function isAccepted(name, sink, severity, report) {
  const minimum = sink.severity ?? "info";
  if (sink.also?.includes("TestAlert") || SEVERITIES.indexOf(severity) >= SEVERITIES.indexOf(minimum)) return true;
  report(`${name}: not notified, its minimum severity is ${minimum}`);
  return false;
}

function pause() {
  return new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
}
