// The active silences, each with a button that ends it; and the dialog that adds one: its labels, duration and comment,
// and the firing alerts that it matches.

import { getJson, post, remove } from "/static/api.js";
import { openDialog } from "/static/confirm.js";
import { matchesSilence, silenceLabels } from "/static/alerts/format.js";
import { h, setText, choices, syncRows, table, unseen } from "/static/dom.js";
import { plural, when } from "/static/format.js";

// Explicit roles: on a phone the cells of a row are stacked, which removes the table's implicit roles.
export const CELL = { role: "cell" };

// `onEnded(text)` is called with the result after a silence was ended.
export function silenceList(onEnded) {
  const body = h("tbody");
  const columns = ["Alerts", "Until", "Comment", unseen("End")];
  const list = h("div.scroll", {}, table(columns, body, "table.stacked", { role: "table", "aria-label": "Silences" }));
  const emptyText = h("p.quiet", {}, "No active silences.");
  const update = (silences) => {
    emptyText.hidden = silences.length > 0;
    list.hidden = !silences.length;
    syncRows(body, silences, (item) => item.id, (item) => row(item, onEnded));
  };
  update([]);
  return { root: h("div", {}, emptyText, list), update };
}

function row(silence, onEnded) {
  const until = h("td", CELL);
  const element = h("tr", { role: "row" }, h("td.text", CELL, silenceLabels(silence.labels)), until,
    h("td.text", CELL, silence.comment), h("td.number", CELL, endButton(silence, onEnded)));
  element.update = (newest) => setText(until, when(newest.until));
  return element;
}

export function endButton(silence, onEnded) {
  const about = Object.values(silence.labels).join(" ") || "all alerts";
  const end = async () => {
    button.disabled = true;
    try {
      const { kept, why } = await remove(`silences/${encodeURIComponent(silence.id)}`);
      const later = kept ? "" : ` It becomes active again when the daemon restarts: ${why}.`;
      onEnded(`The silence has ended. Notifications of its firing alerts are sent now.${later}`);
    } catch (problem) {
      button.disabled = false;
      onEnded(problem.message);
    }
  };
  const button = h("button.needs-write", { "aria-label": `End the silence of ${about}`, onclick: end }, "End");
  return button;
}

const DURATIONS = { 1800: "30 minutes", 7200: "2 hours", 28800: "8 hours", 86400: "1 day", 259200: "3 days",
  604800: "1 week", 2592000: "30 days" };
const MAX_NAMES = 5;

// `labels` are the initial labels; `onDone(text)` is called after the silence was added.
export function openSilenceDialog(labels, onDone, signal) {
  const matcherRows = Object.entries(labels).map(([name, pattern]) => matcherRow(name, pattern, onChange));
  const list = h("div.matchers", {}, matcherRows);
  const preview = h("p.quiet", { role: "status" });
  const duration = h("select", {}, choices(DURATIONS, 7200));
  const comment = h("input", { type: "text", maxlength: 1000, placeholder: "Reason" });
  let firing = [];

  function readPatterns() {
    return Object.fromEntries([...list.children].map((row) => row.read()).filter(([name, pattern]) => name && pattern));
  }

  function onChange() {
    const patterns = readPatterns();
    if (list.children.length && !Object.keys(patterns).length)
      return void setText(preview, "Name the alert, or remove the label to silence all alerts.");
    const matching = firing.filter((row) => matchesSilence(patterns, row));
    const scopeText = Object.keys(patterns).length ? "" : "Without labels, the silence matches all alerts. ";
    setText(preview, scopeText + (matching.length
      ? `Matches ${plural(matching.length, "firing alert")}: ${alertNames(matching)}.` : "Matches no firing alerts."));
  }

  async function submit() {
    const answer = await post("silences",
      { labels: readPatterns(), for: Number(duration.value), comment: comment.value });
    close();
    const count = answer.firing.length;
    const silent = count
      ? `${plural(count, "firing alert is", "firing alerts are")} silenced: ${alertNames(answer.firing)}.`
      : "It matches no firing alerts.";
    const end = answer.kept ? "" : ` The silence ends when the daemon restarts: ${answer.why}.`;
    onDone(`Silenced until ${when(answer.silence.until)}. ${silent}${end}`);
  }

  const add = h("button", { onclick: () => {
    const row = matcherRow("", "", onChange);
    list.append(row);
    row.querySelector("input").focus();
  } }, "Add a label");
  const { close } = openDialog("Silence", { content: [
    h("p.quiet", {}, "Mutes notifications of alerts that match all of these labels. The alerts still fire. ",
      "Patterns may contain * and ?."),
    list,
    add,
    h("label.whole", {}, "For", duration),
    h("label.whole", {}, "Comment", comment),
    preview,
    h("p.quiet", {}, "To silence alerts that Prometheus evaluates, use Alertmanager."),
  ], submit, action: "Silence" }, signal);
  onChange();
  getJson("alerts?firing=true&evidence=false", signal).then(({ alerts }) => {
    firing = alerts;
    onChange();
  }, (problem) => setText(preview, problem.message));
}

function alertNames(alerts) {
  const matching = alerts.map((alert) => [alert.alert, alert.labels.run].filter(Boolean).join(" of "));
  return matching.slice(0, MAX_NAMES).join(", ") +
    (matching.length > MAX_NAMES ? ` and ${matching.length - MAX_NAMES} more` : "");
}

// A row for a label's name and its pattern; a name taken from an alert is fixed.
function matcherRow(name, pattern, onChange) {
  const nameField = name ? h("span.mono", {}, name) : h("input.mono",
    { type: "text", "aria-label": "Label", pattern: "[a-zA-Z_][a-zA-Z0-9_]*", placeholder: "label", required: true });
  const value = h("input.mono", { type: "text", value: pattern, "aria-label": name ? `Pattern of ${name}` : "Pattern",
    maxlength: 256, placeholder: name === "alert" ? "name, such as LossSpike" : "pattern", required: true });
  const onRemove = () => {
    const next = element.nextElementSibling ?? element.previousElementSibling ??
      element.parentElement.nextElementSibling;
    element.remove();
    (next.querySelector?.("button") ?? next).focus();
    onChange();
  };
  const element = h("div.matcher", { oninput: onChange }, nameField, h("span", { "aria-hidden": "true" }, "="), value,
    h("button", { "aria-label": `Remove ${name || "the label"}`, onclick: onRemove }, "Remove"));
  element.read = () => [name || nameField.value.trim(), value.value];
  return element;
}
