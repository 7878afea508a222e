// What fires now, the worst first, as the overview tells it each second.

import { h, rows, say } from "/static/dom.js";
import { runLink, since } from "/static/alerts/words.js";
import { badge } from "/static/parts.js";
import { when } from "/static/words.js";

// So many does the overview tell.
const MOST = 200;
const ABOUT = ["rank", "key", "gpu", "subject"];

// `ends` are the ends of silences by the alerts' ids; `silence(alert)` is called for one that is to be silenced.
export function firing(silence) {
  const none = h("p.quiet", {}, "Nothing fires.");
  const some = h("ul.fires", { "aria-label": "Firing alerts" });
  const rest = h("p.quiet", { hidden: true }, `These are the worst ${MOST}; there may be more.`);
  const told = (alerts, ends, now) => {
    none.hidden = alerts.length > 0;
    rest.hidden = alerts.length < MOST;
    rows(some, alerts.map((alert) => ({ alert, now, until: ends.get(alert.id) })), ({ alert }) => key(alert), ({ alert }) => row(alert, silence));
  };
  return { root: h("div", {}, none, some, rest), told };
}

function key(alert) {
  return JSON.stringify([alert.alert, alert.run, alert.started, ...ABOUT.map((name) => alert[name])]);
}

function row(first, silence) {
  let newest = first;
  const severity = badge(first.severity);
  const name = h("a.named", {}, first.alert);
  const about = ABOUT.filter((one) => first[one] !== undefined).map((one) => `${one} ${first[one]}`);
  const summary = h("p");
  const began = h("span.quiet.when");
  const silent = h("span.quiet.when");
  const button = h("button", { type: "button", "aria-label": `Silence ${first.alert}${first.name ? ` of ${first.name}` : ""}`, onclick: () => silence(newest) }, "Silence…");
  const what = h("div", {}, h("div.line", {}, name, runLink(first), h("span.quiet", {}, about.join(", "))), summary);
  const made = h("li", {}, severity, what, h("div.side", {}, began, silent, button));
  made.told = ({ alert, now, until }) => {
    newest = alert;
    severity.told(alert.severity);
    if (alert.id !== null) name.setAttribute("href", `/alerts/${alert.id}`);
    say(summary, alert.summary);
    say(began, `since ${since(alert.started, now)}`);
    say(silent, until ? `silenced until ${when(until)}` : "silenced");
    silent.hidden = !alert.silenced;
    button.hidden = alert.silenced || alert.id === null;
    made.classList.toggle("silenced", alert.silenced);
  };
  return made;
}
