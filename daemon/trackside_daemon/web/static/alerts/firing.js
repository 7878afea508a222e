// The alerts that fire now, as the overview has them.

import { labelled, runLink, since } from "/static/alerts/format.js";
import { badge, h, setText, syncRows } from "/static/dom.js";
import { when } from "/static/format.js";
import { MAX_ALERTS } from "/static/vocabulary.js";

const SUBJECT_LABELS = ["rank", "key", "gpu", "subject"];

// `silenceEnds` maps alert ids to the end of their silence; `onSilence(alert)` opens the silence dialog; without it,
// there is no button.
export function firingList(onSilence = undefined) {
  const emptyText = h("p.quiet");
  const list = h("ul.fires", { "aria-label": "Firing alerts" });
  const moreText = h("p.quiet", { hidden: true }, `These are the worst ${MAX_ALERTS}. There may be more.`);
  const update = (alerts, silenceEnds, now, anyFires = false) => {
    emptyText.hidden = alerts.length > 0;
    setText(emptyText, anyFires ? "No firing alert matches." : "No alerts are firing.");
    moreText.hidden = alerts.length < MAX_ALERTS;
    syncRows(list, labelled(alerts).map((alert) => ({ alert, now, until: silenceEnds.get(alert.id) })),
      ({ alert }) => key(alert), ({ alert }) => firingRow(alert, onSilence));
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
  const run = runLink(first);
  const title = first.alert + (first.name ? ` of ${first.name}` : "");
  const silence = { "aria-label": `Silence ${title}`, onclick: () => onSilence(newest) };
  const button = h("button.needs-write", silence, "Silence…");
  const description = h("div", {}, h("div.line", {}, name, run, h("span.quiet", {}, about.join(", "))),
    summary);
  const element = h("li", {}, severity, description, h("div.side", {}, began, silent, button));
  element.update = ({ alert, now, until }) => {
    newest = alert;
    severity.update(alert.severity);
    if (alert.id !== null) name.setAttribute("href", `/alerts/${alert.id}`);
    if (run) setText(run, alert.label);
    setText(summary, alert.summary);
    setText(began, `since ${since(alert.started, now)}`);
    setText(silent, until ? `silenced until ${when(until)}` : "silenced");
    silent.hidden = !alert.silenced;
    button.hidden = !onSilence || alert.silenced || alert.id === null;
    element.classList.toggle("silenced", alert.silenced);
  };
  return element;
}
