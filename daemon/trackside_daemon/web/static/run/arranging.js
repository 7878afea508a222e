// Arranges a chart among others: pins it, and moves it by dragging its handle or by a key.

import { icon } from "/static/icons.js";

const TYPE = "text/x-trackside-chart";

// Adds the handle and the pin to a chart. `keys()` returns all keys as they are shown.
export function arrangeable(chart, key, workspace, keys) {
  const { root } = chart;
  const pin = icon("pin", "Pin to the top", () => workspace.togglePin(key));
  const handle = icon("drag", `Move ${key}: drag, or press [ and ]`, () => {});
  handle.classList.add("drag");
  handle.draggable = true;
  chart.tools.prepend(pin);
  chart.heading.before(handle);
  root.chart = chart;
  root.updatePin = () => pin.setAttribute("aria-pressed", String(workspace.pinned.includes(key)));
  root.update = root.updatePin;
  root.updatePin();
  root.pin = pin;

  handle.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData(TYPE, key);
    event.dataTransfer.setDragImage(root, 20, 20);
  });
  root.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes(TYPE)) return;
    event.preventDefault();
    root.classList.add("drop");
  });
  root.addEventListener("dragleave", () => root.classList.remove("drop"));
  root.addEventListener("drop", (event) => {
    event.preventDefault();
    root.classList.remove("drop");
    const moved = event.dataTransfer.getData(TYPE);
    const { left, width } = root.getBoundingClientRect();
    if (moved && moved !== key) workspace.move(moved, key, keys(), event.clientX > left + width / 2);
  });
  // Moves by so many places among the charts beside it.
  root.moveBy = (count) => {
    const siblings = [...root.parentElement.children];
    const other = siblings[siblings.indexOf(root) + count]?.chart;
    if (!other) return;
    workspace.move(key, other.title, keys(), count > 0);
    chart.plot.focus();
  };
}
