// The dialog that raises a test alert, and says where it has arrived.

import { ask, post, query } from "/static/api.js";
import { dialog } from "/static/alerts/dialog.js";
import { h, say } from "/static/dom.js";
import { number, when } from "/static/words.js";

const FIRE_SECONDS = 10;
const WAIT_SECONDS = 30;
const POLL_MILLISECONDS = 300;
const ORDER = ["info", "warning", "critical"];

export function trial(signal) {
  const severity = h("select", {}, ...ORDER.map((one) => h("option", { selected: one === "warning" }, one)));
  const run = h("input", { type: "text", maxlength: 256, placeholder: "None: it is about the machine" });
  const said = h("ul.heard", { role: "status" });
  const tell = (text, kind = "quiet") => said.append(h(`li.${kind}`, {}, text));
  const submit = async () => {
    said.replaceChildren();
    const ended = new AbortController();
    root.addEventListener("close", () => ended.abort());
    say(cancel, "Close");
    await raise({ severity: severity.value, run: run.value.trim() }, tell, ended.signal);
  };
  const { root, cancel } = dialog("Send a test alert", { fill: [
    h("p.quiet", {}, "TestAlert takes the way of all alerts: this page, the history, and each sink of alerts.sinks."),
    h("label.whole", {}, "Severity", severity),
    h("label.whole", {}, "Run", run),
    said,
  ], submit, action: "Send" }, signal);
}

async function raise(asked, tell, signal) {
  const sinks = (await ask("status")).notifications ?? {};
  const begun = Date.now();
  const { test } = await post("alerts/test", asked);
  const alert = await fired(asked.run, test, signal);
  if (signal.aborted) return;
  if (!alert) throw new Error("TestAlert does not fire: alerts.off may have it, or the daemon's log says why.");
  tell(h("span", {}, "It fires as ", h("a", { href: `/alerts/${alert.id}` }, `alert ${alert.id}`), "; Prometheus sees it for 2 minutes."));
  if (alert.silenced_until) return void tell(`A silence has it until ${when(alert.silenced_until)}, so nobody is told.`, "warning");
  if (!Object.keys(sinks).some((name) => name !== "log")) tell(`No sink is set (alerts.sinks): the daemon itself tells nobody${"log" in sinks ? " but its log" : ""}.`);
  await delivered(alert, sinks, begun, tell, signal);
}

async function fired(run, test, signal) {
  for (const until = Date.now() + 1000 * FIRE_SECONDS; Date.now() < until && !signal.aborted; await pause()) {
    const { alerts } = await ask(`alerts?${query({ limit: 20 })}`);
    const found = alerts.find((one) => one.labels.test === test);
    if (found) return found;
  }
  return undefined;
}

async function delivered(alert, before, begun, tell, signal) {
  const waited = new Set(Object.keys(before).filter((name) => taken(name, before[name], alert.severity, tell)));
  for (; waited.size && !signal.aborted; await pause()) {
    const { notified } = await ask(`alerts/${alert.id}`);
    const now = (await ask("status")).notifications ?? {};
    const late = (Date.now() - begun) / 1000;
    for (const name of [...waited]) {
      const error = now[name]?.last_error ?? "no error is known; the daemon's log may say more";
      if (notified.includes(name)) tell(`${name}: delivered after ${number(late, 2)} s`, "good");
      else if ((now[name]?.dropped ?? 0) > before[name].dropped && !now[name]?.queued) tell(`${name}: not delivered, and given up: ${error}`, "bad");
      else if (late >= WAIT_SECONDS) tell(`${name}: not delivered in ${WAIT_SECONDS} s: ${error}`, "bad");
      else continue;
      waited.delete(name);
    }
  }
}

function taken(name, sink, severity, tell) {
  const least = sink.severity ?? "info";
  if (sink.also?.includes("TestAlert") || ORDER.indexOf(severity) >= ORDER.indexOf(least)) return true;
  tell(`${name}: not told, its severity is ${least}`);
  return false;
}

function pause() {
  return new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
}
