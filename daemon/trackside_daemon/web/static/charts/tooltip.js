// The tooltip beside the cursor: each line's value, the highest first, with the raw value where lines are smoothed.

import { h } from "/static/dom.js";

const MOST_ROWS = 16;
const MOST_MARKS = 3;

// Returns the content: a head with the position, and a row for each value. A line that has no point near the cursor, as
// one that ended before, has its own position in its row; `positionOf(x)` formats it and `isNear(x)` decides.
export function tooltipContent(position, values, /** @type {View} */ { format, smooth }, { positionOf, isNear }) {
  const shown = values.filter((item) => item.value !== undefined);
  const order = (item) => (Number.isFinite(item.smoothed ?? item.value) ? item.smoothed ?? item.value : -Infinity);
  const sorted = [...shown].sort((a, b) => order(b) - order(a));
  const rows = sorted.slice(0, MOST_ROWS)
    .map((item) => row(item, format, smooth, isNear(item.x) ? "" : positionOf(item.x)));
  const rest = sorted.length > MOST_ROWS
    ? h("tr", {}, h("td", { colspan: 4 }, `and ${sorted.length - MOST_ROWS} more`)) : "";
  const head = smooth ? h("thead", {}, h("tr", {}, ["", "", "smoothed", "raw"].map((text) => h("th", {}, text)))) : "";
  return [h("p", {}, position), h("table", {}, head, h("tbody", {}, rows, rest))];
}

function row({ line, value, low, high, smoothed }, format, smooth, position) {
  const swatch = h("span.swatch");
  swatch.style.borderTopColor = `var(--s${(line.index % 8) + 1})`;
  swatch.style.borderTopStyle = ["solid", "dashed", "dotted"][Math.floor(line.index / 8) % 3];
  const range = low !== high && low !== null && high !== null ? `${format(low)} … ${format(high)}` : "";
  const main = h("td.number", {}, h("b", {}, format(smooth ? smoothed : value)));
  const own = smooth ? [main, h("td.number", {}, format(value))] : main;
  const more = position || (smooth ? "" : range);
  return h("tr", {}, h("td", {}, swatch), h("td.name", {}, line.label), own,
    more ? h("td.number.quiet", {}, more) : "");
}

// Returns the texts of the marks at the cursor as one line.
export function marksText(texts) {
  const more = texts.length > MOST_MARKS ? ` · and ${texts.length - MOST_MARKS} more` : "";
  return texts.slice(0, MOST_MARKS).join(" · ") + more;
}
