// One alert: its state, silences and notifications, and its evidence, which arrives some seconds later.

import { getJson, post } from "/static/api.js";
import { evidence, scalarEvidence } from "/static/alerts/evidence.js";
import { openSilenceDialog } from "/static/alerts/silence_dialog.js";
import { endButton } from "/static/alerts/silence_list.js";
import { coalesce } from "/static/alerts/coalesce.js";
import { matchesSilence, silenceLabels, displayName, runLink, since, state, displayValue } from "/static/alerts/format.js";
import { h, setText } from "/static/dom.js";
import { badge } from "/static/components.js";
import { span, when } from "/static/format.js";

// Evidence and notifications still arrive while the alert is this fresh.
const FRESH_SECONDS = 60;
const FRESH_RELOAD_SECONDS = 2;
const SETTLED_RELOAD_SECONDS = 15;

export async function alertPage(address) {
  const id = encodeURIComponent(address.parts[0]);
  const read = () => Promise.all([getJson(`alerts/${id}`, { signal: address.signal }), getJson("silences", { signal: address.signal })]);
  let [alert, { silences }] = await read();
  let now;
  let readAt = -Infinity;
  let lastSeen;
  let shown = [];

  const status = h("p.said", { role: "status", tabindex: -1 });
  const onDone = async (text) => {
    setText(status, text);
    status.focus();
    await reload();
  };
  const heading = h("p.line");
  const summary = h("p.lead");
  const description = h("p.broken.quiet");
  const about = h("dl.facts");
  const silent = h("ul.silences");
  const evidenceSections = h("div");
  const button = h("button", { type: "button", onclick: () => openSilenceDialog({ alert: alert.alert, ...alert.labels }, onDone, address.signal) }, "Silence…");

  const dismissButton = h("button", { type: "button", onclick: async () => {
    try {
      await post(`alerts/${id}/dismiss`, { dismissed: !alert.dismissed });
      await onDone(alert.dismissed ? "No longer marked as a false alarm." : "Marked as a false alarm. trackside tune proposes thresholds without it.");
    } catch (problem) {
      setText(status, problem.message);
    }
  } });

  // Rebuilds only the parts that changed, so that the selection and the focus are kept.
  function show() {
    const parts = [
      [heading, () => heading.replaceChildren(badge(alert.severity), state(alert)), [alert.severity, state(alert)]],
      [about, () => about.replaceChildren(...facts(alert)), [alert.labels, alert.ended, alert.notified, alert.dismissed, scalarEvidence(alert)]],
      [silent, () => silent.replaceChildren(...matchingSilences().map((each) => h("li.line", {}, h("span", {}, "Silenced by ", silenceLabels(each.labels), `until ${when(each.until)}${each.comment ? `: ${each.comment}` : ""}`), endButton(each, onDone)))), matchingSilences()],
      [evidenceSections, () => evidenceSections.replaceChildren(...evidence(alert)), alert.evidence],
    ].map(([, make, of]) => [make, JSON.stringify(of)]);
    parts.forEach(([make, of], index) => of !== shown[index] && make());
    shown = parts.map(([, of]) => of);
    setText(summary, alert.summary);
    setText(description, alert.description);
    description.hidden = !alert.description;
    setText(dismissButton, alert.dismissed ? "Not a false alarm" : "False alarm");
    button.hidden = alert.ended !== null || Boolean(alert.silenced_until);
    tick();
  }

  function matchingSilences() {
    return alert.ended === null ? silences.filter((each) => matchesSilence(each.labels, alert)) : [];
  }

  function tick() {
    const began = about.querySelector(".began");
    if (began) setText(began, since(alert.started, now));
  }

  const reload = coalesce(async () => {
    try {
      [alert, { silences }] = await read();
      show();
    } catch {
      // The frame reports the outage.
    }
  });

  show();
  const root = h(
    "article.alerting",
    {},
    h("p", {}, h("a", { href: "/alerts" }, "← Alerts")),
    h("div.tools.titled", {}, h("h1", {}, alert.alert), heading, h("span.grow"), dismissButton, button),
    status,
    summary,
    description,
    silent,
    about,
    evidenceSections,
  );
  const update = (overview) => {
    now = overview.time;
    tick();
    const current = JSON.stringify(overview.alerts.find((each) => each.id === alert.id));
    const isFresh = now - (alert.ended ?? alert.started) < FRESH_SECONDS;
    const settledInterval = alert.ended === null ? SETTLED_RELOAD_SECONDS : Infinity;
    const isDue = now - readAt >= (isFresh ? FRESH_RELOAD_SECONDS : settledInterval);
    if (document.hidden || (current === lastSeen && !isDue)) return;
    lastSeen = current;
    readAt = now;
    reload();
  };
  return { root, update, title: `${alert.alert}${alert.name ? ` of ${alert.name}` : ""}` };
}

function facts(alert) {
  const labels = Object.entries(alert.labels).filter(([name]) => name !== "run");
  const entries = [
    ["Run", runLink(alert) ?? alert.labels.run],
    ...labels.map(([name, value]) => [name, value]),
    ["Began", h("span.began")],
    ["Ended", alert.ended !== null && `${when(alert.ended)}, after ${span(Math.max(0, alert.ended - alert.started))}`],
    ["Notified", alert.notified.length ? alert.notified.join(", ") : "none yet"],
    ["Dismissed", alert.dismissed && `as a false alarm, ${when(alert.dismissed.time)}${alert.dismissed.comment ? `: ${alert.dismissed.comment}` : ""}`],
    ...scalarEvidence(alert).map(([name, value]) => [displayName(name), displayValue(name, value)]),
  ];
  return entries.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name[0].toUpperCase() + name.slice(1)), h("dd", {}, value)]).flat();
}
