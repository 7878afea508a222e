// Keys of the keyboard that work on every page, outside of fields.

import { h } from "/static/dom.js";
import { toggleTheme } from "/static/theme.js";

const HELP = [
  ["/", "search"], ["j, k", "next, previous chart"], ["f", "the chart over the full width"],
  ["p", "pin the chart to the top"],
  ["[, ]", "move the chart"], ["← →", "move the cursor in the chart; with shift the window"], ["+ −", "zoom the chart"],
  ["Home", "show everything again"],
  ["t", "switch between light and dark"], ["?", "this help"],
];

const ACTIONS = {
  "/": () => search(),
  j: () => focusChart(1),
  k: () => focusChart(-1),
  f: () => withChart((root) => root.chart?.setFull(!root.chart.isFull)),
  p: () => withChart((root) => root.pin?.click()),
  "[": () => withChart((root) => root.moveBy?.(-1)),
  "]": () => withChart((root) => root.moveBy?.(1)),
  t: () => toggleTheme(),
  "?": () => showHelp(),
};

export function listenForKeys() {
  addEventListener("keydown", (event) => {
    const isTyping = event.target instanceof Element &&
      event.target.closest("input, select, textarea, dialog, [contenteditable]");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented ||
      !Object.hasOwn(ACTIONS, event.key)) return;
    event.preventDefault();
    ACTIONS[event.key]();
  });
}

function search() {
  const fields = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("main input[type=search]"));
  [...fields].find((field) => field.checkVisibility())?.focus();
}

function focusChart(direction) {
  const all = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("main .chart .plot"));
  const plots = [...all].filter((plot) => plot.checkVisibility());
  const at = plots.findIndex((plot) => plot.closest(".chart").contains(document.activeElement));
  const next = at < 0 ? plots.at(Math.min(0, direction)) : plots[at + direction];
  next?.focus({ preventScroll: true });
  next?.closest(".chart").scrollIntoView({ block: "center" });
}

// Calls with the chart that has the focus.
function withChart(call) {
  const root = document.activeElement?.closest(".chart");
  if (root) call(root);
}

export function showHelp() {
  if (document.querySelector("dialog[open]")) return;
  const close = h("button.strong", { onclick: () => dialog.close() }, "Close");
  const keys = h("dl.facts", {}, HELP.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]));
  const dialog = h("dialog", { "aria-labelledby": "keys-heading", onclose: () => dialog.remove() },
    h("h2", { id: "keys-heading" }, "Keys"), keys, h("div.tools", {}, close));
  document.body.append(dialog);
  dialog.showModal();
}
