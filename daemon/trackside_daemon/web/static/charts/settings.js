// The settings of one chart: its scale and its range, in a small panel.

import { h, checkbox, choices, icon } from "/static/dom.js";

// What a chart of two keys shows, by how it is stored.
export const FORMULAS = { "": "and", "-": "−", "/": "÷" };
const FORMULA_NAMES = { "": "both", "-": "their difference", "/": "their ratio" };

// Returns the button and its panel. `onChange` is called with the chart's own settings when the user changes one.
export function chartSettings(chart, onChange) {
  const panel = h("div.chart-panel", { hidden: true, role: "group", "aria-label": `Settings of ${chart.title}` });
  const button = icon("settings", "Scale and range", () => toggle());
  button.setAttribute("aria-expanded", "false");

  function toggle(open = panel.hidden) {
    if (open) fill();
    panel.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  }

  const change = (changes) => onChange({ ...chart.own, ...changes });
  const bound = (name, text) => {
    const input = h("input", { type: "number", step: "any", value: chart.own[name], placeholder: "auto",
      onchange: () => change({ [name]: Number.isFinite(input.valueAsNumber) ? input.valueAsNumber : undefined }) });
    return h("label", {}, text, input);
  };

  function fill() {
    const reset = () => {
      onChange({});
      toggle(false);
    };
    const boxes = [["log", "Log scale"], ["robust", "Ignore outliers"]];
    const options = chart.others && choices({ "": "no other key", ...Object.fromEntries(chart.others().map((key) =>
      [key, key])) }, chart.second ?? "");
    const second = h("select", { onchange: () => change({ second: second.value }) }, options);
    const formula = h("select", { "aria-label": "Shown", onchange: () => change({ formula: formula.value }) },
      choices(FORMULA_NAMES, chart.formula));
    panel.replaceChildren(options ? h("label", {}, "With", second, formula) : "",
      ...boxes.map(([name, text]) => checkbox(name, text, chart.view, change)),
      bound("low", "Lowest"), bound("high", "Highest"), h("button.small", { onclick: reset }, "As on the page"),
      chart.svg ? h("button.small", { onclick: () => chart.svg() }, "SVG") : "");
  }

  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    toggle(false);
    button.focus();
  });
  return { button, panel };
}
