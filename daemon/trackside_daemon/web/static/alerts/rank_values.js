// The last values of all ranks before an alert, a row for each rank. The ranks of the alert come first.

import { displayName, displayValue } from "/static/alerts/format.js";
import { h, scrollable, table } from "/static/dom.js";

// Units of values whose name states none; those of the others are shown with each value.
const HEADS = { step: "Step", loss: "Loss", grad_norm: "Gradient norm", learning_rate: "Learning rate",
  last_push: "Last push", state: "State" };
const PHASE = "phase_seconds";

// `values` are the values by name, by rank; a value may be an object of seconds by phase.
export function rankValues(values, alert) {
  const own = alert.labels.rank;
  const ranks = Object.keys(values).sort((a, b) => Number(b === own) - Number(a === own) || Number(a) - Number(b));
  const flat = ranks.map((rank) => flatten(values[rank]));
  const names = [...new Set(flat.flatMap(Object.keys))];
  const isText = (name) => flat.every((item) => item[name] === undefined || name === "state");
  const columns = [["Rank", "number"], ...names.map((name) => [headOf(name), isText(name) ? "" : "number"])];
  const body = ranks.map((rank, index) => h(rank === own ? "tr.strong" : "tr", {},
    h("th.number", { scope: "row" }, rank),
    names.map((name) => h(isText(name) ? "td" : "td.number", {}, displayValue(name, flat[index][name])))));
  return scrollable("Last values of the ranks", table(columns, body, "table.things"));
}

// A phase's name ends with its unit, so that its value is shown as a duration.
function flatten(values) {
  return Object.fromEntries(Object.entries(values).flatMap(([name, value]) => {
    if (value === null || typeof value !== "object") return [[name, value]];
    return Object.entries(value)
      .map(([inner, item]) => [name === PHASE ? `${inner}_seconds phase` : `${name} ${inner}`, item]);
  }));
}

function headOf(name) {
  if (Object.hasOwn(HEADS, name)) return HEADS[name];
  if (name.endsWith("_seconds phase")) return `Time in ${name.slice(0, -"_seconds phase".length)}`;
  if (!/^[a-z_]+$/.test(name)) return name; // a key as the user wrote it
  const shown = displayName(name);
  return shown[0].toUpperCase() + shown.slice(1);
}
