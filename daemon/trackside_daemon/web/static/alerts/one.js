// One alert: what, since when, who was told, what silences it; and its evidence, which comes some seconds after it.

import { ask } from "/static/api.js";
import { evidence, single } from "/static/alerts/evidence.js";
import { silence } from "/static/alerts/silence.js";
import { endButton } from "/static/alerts/silences.js";
import { alone } from "/static/alerts/alone.js";
import { fits, matchers, named, runLink, since, state, valued } from "/static/alerts/words.js";
import { h, say } from "/static/dom.js";
import { badge } from "/static/parts.js";
import { span, when } from "/static/words.js";

// While it is fresh, evidence and notifications still come.
const FRESH_SECONDS = 60;
const OFTEN_SECONDS = 2;
const SELDOM_SECONDS = 15;

export async function one(place) {
  const id = encodeURIComponent(place.parts[0]);
  const read = () => Promise.all([ask(`alerts/${id}`, { signal: place.signal }), ask("silences", { signal: place.signal })]);
  let [alert, { silences }] = await read();
  let now;
  let readAt = -Infinity;
  let heard;
  let shown = [];

  const said = h("p.said", { role: "status", tabindex: -1 });
  const done = async (text) => {
    say(said, text);
    said.focus();
    await look();
  };
  const heading = h("p.line");
  const summary = h("p.lead");
  const description = h("p.broken.quiet");
  const about = h("dl.facts");
  const silent = h("ul.silences");
  const found = h("div");
  const button = h("button", { type: "button", onclick: () => silence({ alert: alert.alert, ...alert.labels }, done, place.signal) }, "Silence…");

  // Only what has changed is made anew, so that nobody loses what is selected or has the focus.
  function show() {
    const parts = [
      [heading, () => heading.replaceChildren(badge(alert.severity), state(alert)), [alert.severity, state(alert)]],
      [about, () => about.replaceChildren(...facts(alert)), [alert.labels, alert.ended, alert.notified, single(alert)]],
      [silent, () => silent.replaceChildren(...lasting().map((each) => h("li.line", {}, h("span", {}, "Silenced by ", matchers(each.labels), `until ${when(each.until)}${each.comment ? `: ${each.comment}` : ""}`), endButton(each, done)))), lasting()],
      [found, () => found.replaceChildren(...evidence(alert)), alert.evidence],
    ].map(([, make, of]) => [make, JSON.stringify(of)]);
    parts.forEach(([make, of], index) => of !== shown[index] && make());
    shown = parts.map(([, of]) => of);
    say(summary, alert.summary);
    say(description, alert.description);
    description.hidden = !alert.description;
    button.hidden = alert.ended !== null || Boolean(alert.silenced_until);
    tick();
  }

  function lasting() {
    return alert.ended === null ? silences.filter((each) => fits(each.labels, alert)) : [];
  }

  function tick() {
    const began = about.querySelector(".began");
    if (began) say(began, since(alert.started, now));
  }

  const look = alone(async () => {
    try {
      [alert, { silences }] = await read();
      show();
    } catch {
      // The frame says that the daemon does not answer.
    }
  });

  show();
  const root = h(
    "article.alerting",
    {},
    h("p", {}, h("a", { href: "/alerts" }, "← Alerts")),
    h("div.tools.titled", {}, h("h1", {}, alert.alert), heading, h("span.grow"), button),
    said,
    summary,
    description,
    silent,
    about,
    found,
  );
  const told = (overview) => {
    now = overview.time;
    tick();
    const mine = JSON.stringify(overview.alerts.find((each) => each.id === alert.id));
    const fresh = now - (alert.ended ?? alert.started) < FRESH_SECONDS;
    const seldom = alert.ended === null ? SELDOM_SECONDS : Infinity;
    const due = now - readAt >= (fresh ? OFTEN_SECONDS : seldom);
    if (document.hidden || (mine === heard && !due)) return;
    heard = mine;
    readAt = now;
    look();
  };
  return { root, told, title: `${alert.alert}${alert.name ? ` of ${alert.name}` : ""}` };
}

function facts(alert) {
  const labels = Object.entries(alert.labels).filter(([name]) => name !== "run");
  const told = [
    ["Run", runLink(alert) ?? alert.labels.run],
    ...labels.map(([name, value]) => [name, value]),
    ["Began", h("span.began")],
    ["Ended", alert.ended !== null && `${when(alert.ended)}, after ${span(Math.max(0, alert.ended - alert.started))}`],
    ["Told by", alert.notified.length ? alert.notified.join(", ") : "nobody yet"],
    ...single(alert).map(([name, value]) => [named(name), valued(name, value)]),
  ];
  return told.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name[0].toUpperCase() + name.slice(1)), h("dd", {}, value)]).flat();
}
