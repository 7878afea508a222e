// Marks on the charts: events, merged over all ranks, and alerts.

import { post, runPath } from "/static/api.js";
import { openDialog } from "/static/confirm.js";
import { h } from "/static/dom.js";
import { number, span, when } from "/static/format.js";
import { ranges } from "/static/run/keys.js";

const USER_ALERT_EVENT = "user_alert"; // Raised by the training script; it is listed among the alerts too.

const ANNOTATION = "annotation"; // Written on the page.

// Asks for the note at a point of a chart, { step, time, note }, and stores it.
export function annotate(run, { step, time, note = "" }, onStored, signal) {
  const text = h("textarea", { rows: 3, maxlength: 1000, placeholder: "Empty: no note" }, note);
  const submit = async () => {
    await post(`${runPath(run.id)}/annotations`, { text: text.value, step, time });
    dialog.close();
    onStored();
  };
  const dialog = openDialog(Number.isFinite(step) ? `Note at step ${number(step)}` : `Note at ${when(time)}`,
    { action: "Save", submit, content: h("label.field", {}, "Text", text) }, signal);
}

export function chartMarks(events, alerts) {
  const groups = new Map();
  for (const event of events) {
    if (event.kind === USER_ALERT_EVENT) continue;
    const key = JSON.stringify([event.kind, event.attempt, event.step ?? Math.round(event.time), event.fields.title]);
    groups.set(key, [...(groups.get(key) ?? []), event]);
  }
  return [...[...groups.values()].map(eventMark), ...alerts.map(alertMark)];
}

function eventMark(events) {
  const [{ kind, step, fields }] = events;
  const time = Math.min(...events.map((event) => event.time));
  const ranks = events.map((event) => event.rank).filter(Number.isInteger);
  const ranksText = ranks.length ? ` of ${ranks.length > 1 ? "ranks" : "rank"} ${ranges(ranks)}` : "";
  const isNote = kind === ANNOTATION && !ranks.length; // That of a rank is an event of its script.
  const details = Object.entries(fields).filter(([name]) => name !== "traceback").slice(0, 4)
    .map(([name, value]) => (isNote ? value : `${name} ${formatField(value)}`));
  return { kind, step, time, note: isNote ? fields.text : undefined, text:
    `${kind}${ranksText}${step === null ? "" : `, step ${step}`}${details.length ? `: ${details.join(", ")}` : ""}` };
}

function formatField(value) {
  if (typeof value === "number") return number(value);
  return typeof value === "object" ? JSON.stringify(value) : value;
}

function alertMark({ alert, severity, summary: of, evidence, started, ended }) {
  const summary = evidence?.conclusion ? `${of}; ${evidence.conclusion}` : of;
  const state = ended === null ? "firing" : `fired for ${span(ended - started)}`;
  const text = severity === "info" ? `${alert}: ${summary}` : `${alert}, ${severity}, ${state}: ${summary}`;
  return { kind: "alert", step: undefined, time: started, until: ended ?? undefined, text, severity, alert: true };
}
