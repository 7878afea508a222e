// The legend: each line's name with its value at the cursor, or its last value. Each line can be hidden.

import { h, syncRows, setText } from "/static/dom.js";

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
      swatch.style.borderTopColor = `var(--s${(now.index % 8) + 1})`;
      swatch.style.borderTopStyle = ["solid", "dashed", "dotted"][Math.floor(now.index / 8) % 3];
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
