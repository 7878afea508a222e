// The dialog in which a silence is made: of what, for how long, why; and what it would have of what fires now.

import { ask, post } from "/static/api.js";
import { dialog } from "/static/alerts/dialog.js";
import { fits } from "/static/alerts/words.js";
import { h, say } from "/static/dom.js";
import { plural, when } from "/static/words.js";

const LENGTHS = { 1800: "30 minutes", 7200: "2 hours", 28800: "8 hours", 86400: "1 day" };
const UNITS = { 60: "minutes", 3600: "hours", 86400: "days" };
const LONGEST = 30 * 86400;
const NAMED = 5;

// `labels` are those that it begins with; `done(text)` is told when it is made.
export function silence(labels, done, signal) {
  const chosen = Object.entries(labels).map(([name, pattern]) => matcher(name, pattern, changed));
  const list = h("div.matchers", {}, chosen);
  const preview = h("p.quiet", { role: "status" });
  const length = lasting();
  const comment = h("input", { type: "text", maxlength: 1000, placeholder: "Why" });
  let firing = [];

  function wanted() {
    return Object.fromEntries([...list.children].map((one) => one.read()).filter(([name, pattern]) => name && pattern));
  }

  function changed() {
    const patterns = wanted();
    const found = firing.filter((one) => fits(patterns, one));
    const all = Object.keys(patterns).length ? "" : "Without a label, all alerts are silent. ";
    say(preview, all + (found.length ? `${plural(found.length, "alert")} of those that fire ${found.length === 1 ? "fits" : "fit"}: ${names(found)}.` : "Nothing that fires now fits."));
  }

  async function submit() {
    const answer = await post("silences", { labels: wanted(), for: length.read(), comment: comment.value });
    close();
    const count = answer.firing.length;
    const silent = count ? `${plural(count, "firing alert is", "firing alerts are")} silent now: ${names(answer.firing)}.` : "Nothing that fires now fits.";
    done(`Silenced until ${when(answer.silence.until)}. ${silent}${answer.kept ? "" : ` After a restart it is forgotten: ${answer.why}.`}`);
  }

  const add = h("button", { type: "button", onclick: () => {
    const one = matcher("", "", changed);
    list.append(one);
    one.querySelector("input").focus();
  } }, "Add a label");
  const { close } = dialog("Silence", { fill: [
    h("p.quiet", {}, "Nobody is told of alerts that have all of these labels; they fire all the same. A pattern may have * and ?."),
    list,
    add,
    h("label.whole", {}, "For", length.root),
    length.other,
    h("label.whole", {}, "Comment", comment),
    preview,
    h("p.quiet", {}, "What Prometheus itself evaluates is silenced in Alertmanager."),
  ], submit, action: "Silence" }, signal);
  changed();
  ask("alerts?firing=true&evidence=false", { signal }).then(({ alerts }) => {
    firing = alerts;
    changed();
  }, (problem) => say(preview, problem.message));
}

function names(alerts) {
  const found = alerts.map((one) => [one.alert, one.labels.run].filter(Boolean).join(" of "));
  return found.slice(0, NAMED).join(", ") + (found.length > NAMED ? ` and ${found.length - NAMED} more` : "");
}

// A label's name and its pattern; a name that came from an alert stays.
function matcher(name, pattern, changed) {
  const called = name ? h("span.mono", {}, name) : h("input.mono", { type: "text", "aria-label": "Label", pattern: "[a-zA-Z_][a-zA-Z0-9_]*", placeholder: "label", required: true });
  const value = h("input.mono", { type: "text", value: pattern, "aria-label": name ? `Pattern of ${name}` : "Pattern", maxlength: 256, placeholder: "pattern", required: true });
  const gone = () => {
    const next = made.nextElementSibling ?? made.previousElementSibling ?? made.parentElement.nextElementSibling;
    made.remove();
    (next.querySelector?.("button") ?? next).focus();
    changed();
  };
  const made = h("div.matcher", { oninput: changed }, called, h("span", { "aria-hidden": "true" }, "="), value, h("button", { type: "button", "aria-label": `Remove ${name || "the label"}`, onclick: gone }, "Remove"));
  made.read = () => [name || called.value.trim(), value.value];
  return made;
}

function lasting() {
  const root = h("select", { onchange: () => {
    other.hidden = root.value !== "other";
    count.disabled = other.hidden;
  } }, ...Object.entries(LENGTHS).map(([seconds, text]) => h("option", { value: seconds, selected: seconds === "7200" }, text)), h("option", { value: "other" }, "Other…"));
  const count = h("input", { type: "number", min: 1, step: "any", value: 3, "aria-label": "How many", disabled: true, required: true });
  const unit = h("select", { "aria-label": "Unit" }, ...Object.entries(UNITS).map(([seconds, text]) => h("option", { value: seconds, selected: seconds === "86400" }, text)));
  const other = h("span.other", { hidden: true }, count, unit);
  const read = () => {
    const seconds = root.value === "other" ? Number(count.value) * Number(unit.value) : Number(root.value);
    if (!(seconds > 0 && seconds <= LONGEST)) throw new Error("A silence lasts 30 days at most.");
    return seconds;
  };
  return { root, other, read };
}
