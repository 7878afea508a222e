// What is marked on the charts: what happened, once for all ranks, and what fired.

import { number, span } from "/static/words.js";
import { ranges } from "/static/run/words.js";

const RAISED = "user_alert"; // An alert of the training itself, which is among the alerts too.

export function marksOf(events, alerts) {
  const groups = new Map();
  for (const event of events) {
    if (event.kind === RAISED) continue;
    const key = JSON.stringify([event.kind, event.attempt, event.step ?? Math.round(event.time), event.fields.title]);
    groups.set(key, [...(groups.get(key) ?? []), event]);
  }
  return [...[...groups.values()].map(ofEvents), ...alerts.map(ofAlert)];
}

function ofEvents(events) {
  const [{ kind, step, fields }] = events;
  const time = Math.min(...events.map((one) => one.time));
  const ranks = events.map((one) => one.rank).filter(Number.isInteger);
  const who = ranks.length > 1 ? ` of ranks ${ranges(ranks)}` : ranks.length ? ` of rank ${ranks[0]}` : "";
  const said = Object.entries(fields).slice(0, 4).map(([name, value]) => `${name} ${field(value)}`);
  return { step, time, text: `${kind}${who}${step === null ? "" : `, step ${step}`}${said.length ? `: ${said.join(", ")}` : ""}` };
}

function field(value) {
  if (typeof value === "number") return number(value);
  return typeof value === "object" ? JSON.stringify(value) : value;
}

function ofAlert({ alert, severity, summary, started, ended }) {
  const lasted = ended === null ? "fires" : `fired for ${span(ended - started)}`;
  const text = severity === "info" ? `${alert}: ${summary}` : `${alert}, ${severity}, ${lasted}: ${summary}`;
  return { step: undefined, time: started, text, severity, alert: true };
}
