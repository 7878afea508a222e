// The button that shows everything again, one for all charts of a page or a section.

import { h } from "/static/dom.js";

// `update(from, to)` shows the button while a window is selected.
export function zoomReset(reset) {
  const button = h("button.strong.small", { hidden: true, onclick: (event) => {
    event.preventDefault(); // In a section's heading, it would close the section.
    reset();
  } }, "Reset zoom");
  return { button, update: (from, to) => { button.hidden = from === undefined && to === undefined; } };
}
