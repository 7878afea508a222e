// Marks on the charts: events, merged over all ranks, and alerts.

import { number, span } from "/static/format.js";
import { ranges } from "/static/run/keys.js";

const USER_ALERT_EVENT = "user_alert"; // Raised by the training script; it is listed among the alerts too.

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
  const details = Object.entries(fields).filter(([name]) => name !== "traceback").slice(0, 4)
    .map(([name, value]) => `${name} ${formatField(value)}`);
  return { kind, step, time, text:
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
