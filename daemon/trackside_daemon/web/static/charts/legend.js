// The names of a chart's lines with the values at its cursor, or the last: each can be hidden.

import { h, rows, say } from "/static/dom.js";

export class Legend {
  constructor(chart) {
    this.chart = chart;
    this.root = h("div.legend", { role: "group", "aria-label": `Lines of ${chart.title}` });
  }

  // The lines have changed.
  told() {
    const { lines } = this.chart;
    this.root.hidden = lines.length < 2 && !lines[0]?.label;
    rows(this.root, lines, (line) => String(line.label), (line) => this.#row(line));
    this.values();
  }

  #row(line) {
    const swatch = h("span.swatch");
    const value = h("span.value");
    const name = h("span.name", {}, line.label || this.chart.title);
    const row = h("button", { type: "button", "aria-pressed": "true", title: "Show or hide", onclick: () => this.chart.turn(line.label) }, swatch, name, value);
    row.told = (now) => {
      row.reading = value;
      swatch.style.borderTopColor = `var(--s${(now.place % 8) + 1})`;
      swatch.style.borderTopStyle = ["solid", "dashed", "dotted"][Math.floor(now.place / 8) % 3];
      row.setAttribute("aria-pressed", String(!this.chart.hidden.has(now.label)));
    };
    return row;
  }

  // Says the values at a place, or the last of each.
  values(values) {
    const { lines, view } = this.chart;
    const known = new Map(values?.map((one) => [one.line, one.value]) ?? view.drawn.map((one) => [one.line, one.columns.told.at(-1)]));
    lines.forEach((line, place) => {
      const text = view.tell(known.get(line));
      say(this.root.children[place].reading, text);
      say(this.chart.now, this.root.hidden ? text : "");
    });
    if (!lines.length) say(this.chart.now, "");
  }

  // One of them as words.
  text({ line, value }) {
    return value === undefined ? "" : `${line.label || this.chart.title} ${this.chart.view.tell(value)}`;
  }
}
