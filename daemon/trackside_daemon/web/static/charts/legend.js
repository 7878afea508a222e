// The legend: each line's name with its value at the cursor, or its last value. Each line can be hidden.

import { paintSwatch } from "/static/charts/colors.js";
import { isTime } from "/static/charts/lines.js";
import { span } from "/static/format.js";
import { h, syncRows, setText } from "/static/dom.js";

const MOST_ROWS = 16;
const MOST_MARKS = 3;

export class Legend {
  constructor(/** @type {import('/static/charts/chart.js').Chart} */ chart) {
    this.chart = chart;
    this.root = h("div.legend", { role: "group", "aria-label": `Lines of ${chart.title}` });
  }

  // Called when the lines have changed.
  update() {
    const { lines } = this.chart;
    this.root.hidden = this.chart.view.sharedLegend || (lines.length < 2 && !lines[0]?.label);
    syncRows(this.root, lines, (line) => String(line.label), (line) => this.#row(line));
    this.values();
  }

  #row(line) {
    const swatch = h("span.swatch");
    const value = h("span.value");
    const name = h("span.name", {}, line.label || this.chart.title);
    const row = h("button", { "aria-pressed": "true", title: "Show or hide",
      onclick: () => this.chart.toggle(line.label) }, swatch, name, value);
    row.update = (now) => {
      row.valueElement = value;
      paintSwatch(swatch, now.index);
      row.setAttribute("aria-pressed", String(!this.chart.hidden.has(now.label)));
    };
    return row;
  }

  // Shows the given values, or the last value of each line.
  values(values) {
    const { lines, view } = this.chart;
    const alone = this.root.hidden && lines.length < 2;
    const valueByLine = new Map(values?.map((item) => [item.line, item.smoothed ?? item.value]) ??
      view.drawn.map((item) => [item.line, item.columns.raw.at(-1)]));
    lines.forEach((line, index) => {
      const text = view.format(valueByLine.get(line));
      const row = this.root.children[index]; // Absent until the chart has drawn its lines.
      if (row) setText(row.valueElement, text);
      const shown = values ? text : this.newest ?? text;
      setText(this.chart.valueText, alone ? shown : "");
    });
    if (!lines.length) setText(this.chart.valueText, "");
  }

  // Shows a value that is newer than the loaded ones, if the chart has a single line and shows its end.
  setNewest(value) {
    this.newest = value === undefined ? undefined : this.chart.view.format(value);
    if (this.newest !== undefined && this.chart.tooltip.hidden) this.values();
  }

  // Returns a line's name and value as text.
  text({ line, value }) {
    return value === undefined ? "" : `${line.label || this.chart.title} ${this.chart.view.format(value)}`;
  }
}

// Returns the content: a head with the position, and a row for each value. A line that has no point near the cursor, as
// one that ended before, has its own position in its row; `positionOf(x)` formats it and `isNear(x)` decides.
export function tooltipContent(position, values, /** @type {View} */ view, { positionOf, isNear }) {
  const { smooth } = view;
  const shown = values.filter((item) => item.value !== undefined);
  const order = (item) => (Number.isFinite(item.smoothed ?? item.value) ? item.smoothed ?? item.value : -Infinity);
  const sorted = [...shown].sort((a, b) => order(b) - order(a));
  const rows = sorted.slice(0, MOST_ROWS)
    .map((item) => row(item, view, isNear(item.x) ? "" : positionOf(item.x)));
  const rest = sorted.length > MOST_ROWS
    ? h("tr", {}, h("td", { colspan: 5 }, `and ${sorted.length - MOST_ROWS} more`)) : "";
  const head = smooth ? h("thead", {}, h("tr", {}, ["", "", "smoothed", "raw"].map((text) => h("th", {}, text)))) : "";
  return [h("p", {}, position), h("table", {}, head, h("tbody", {}, rows, rest))];
}

function row({ line, value, low, high, smoothed, time }, /** @type {View} */ view, position) {
  const { format, smooth } = view;
  const swatch = h("span.swatch");
  paintSwatch(swatch, line.index);
  const range = low !== high && low !== null && high !== null ? `${format(low)} … ${format(high)}` : "";
  const main = h("td.number", {}, h("b", {}, format(smooth ? smoothed : value)));
  const own = smooth ? [main, h("td.number", {}, format(value))] : main;
  const more = position || (smooth ? "" : range);
  const start = line.start ?? view.origin;
  const at = isTime(view.by) || start === undefined ? "" : span(time - start).replace(/^./, "after $&");
  return h("tr", {}, h("td", {}, swatch), h("td.name", {}, line.label), own,
    more ? h("td.number.quiet", {}, more) : "", h("td.quiet", {}, at));
}

// Returns the texts of the marks at the cursor as one line.
export function marksText(texts) {
  const more = texts.length > MOST_MARKS ? ` · and ${texts.length - MOST_MARKS} more` : "";
  return texts.slice(0, MOST_MARKS).join(" · ") + more;
}
