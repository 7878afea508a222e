// Interaction with a chart by keyboard, mouse, wheel and touch.

import { setText, h } from "/static/dom.js";

// Arrow keys move the cursor, with shift the window; + and - zoom around the cursor; Home shows all; n writes a note.
export function handleKey(chart, event) {
  const { u } = chart;
  const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!u || event.ctrlKey || event.metaKey || event.altKey) return;
  if (direction && event.shiftKey) moveWindow(chart, direction * 0.2);
  else if (direction) moveCursor(chart, direction);
  else if (event.key === "+" || event.key === "=") zoomBy(chart, 0.5);
  else if (event.key === "-") zoomBy(chart, 2);
  else if (event.key === "Home") chart.zoom();
  else if (event.key === "n") chart.note(event);
  else if (event.key === "Escape") u.setCursor({ left: -10, top: -10 });
  else return;
  event.preventDefault();
}

function moveCursor(chart, direction) {
  const { u } = chart;
  const [from, to] = [u.scales.x.min, u.scales.x.max];
  const visible = u.data[0].flatMap((x, index) => (x >= from && x <= to ? [index] : []));
  if (!visible.length) return;
  const shown = u.cursor.left >= 0 && u.cursor.idx !== null && u.cursor.idx !== undefined;
  const next = shown ? u.cursor.idx + direction : visible.at(-1);
  const index = Math.max(visible[0], Math.min(visible.at(-1), next));
  u.setCursor({ left: u.valToPos(u.data[0][index], "x"), top: u.over.clientHeight / 2 });
  setText(chart.spoken, chart.spokenTexts.filter(Boolean).join(", "));
}

function zoomBy(chart, factor) {
  const { u } = chart;
  const { min, max } = u.scales.x;
  const middle = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : (min + max) / 2;
  const [low, high] = fullRange(chart);
  const from = Math.max(low, middle - (middle - min) * factor);
  const to = Math.min(high, middle + (max - middle) * factor);
  if (from <= low && to >= high) chart.zoom();
  else chart.zoom(from, to);
}

function moveWindow(chart, part) {
  const { min, max } = chart.u.scales.x;
  chart.zoom(min + part * (max - min), max + part * (max - min));
}

// Returns the full range as far as it is known; a zoomed chart has loaded only a part.
function fullRange(chart) {
  if (chart.from === undefined) return [chart.u.scales.x.min, chart.u.scales.x.max];
  return chart.all ?? [-Infinity, Infinity];
}

// Moves the window with the mouse, and loads data at the end.
export function startPan(chart, event) {
  const { u } = chart;
  const { min, max } = u.scales.x;
  const dragging = new AbortController();
  const shift = (moved) => ((event.clientX - moved.clientX) / u.over.clientWidth) * (max - min);
  const show = (moved) => chart.preview(min + shift(moved), max + shift(moved));
  addEventListener("mousemove", show, { signal: dragging.signal });
  addEventListener("mouseup", (moved) => {
    dragging.abort();
    chart.zoom(min + shift(moved), max + shift(moved));
  }, { signal: dragging.signal });
  event.preventDefault();
}

// Shift and the wheel move the window; the wheel alone scrolls the page.
export function attachWheelPan(chart) {
  let timer;
  chart.plot.addEventListener("wheel", (event) => {
    if (!event.shiftKey || !chart.u) return;
    event.preventDefault();
    const { min, max } = chart.u.scales.x;
    const shift = (Math.sign(event.deltaY || event.deltaX) * (max - min)) / 10;
    chart.preview(min + shift, max + shift);
    clearTimeout(timer);
    timer = setTimeout(() => chart.zoom(chart.from, chart.to), 200);
  }, { passive: false });
}

// Translates sideways touches to mouse events, the only ones that uPlot handles; it ignores events without a movement.
// Vertical touches scroll the page.
export function attachTouch(u) {
  const { over } = u;
  const names = { pointerdown: "mousedown", pointermove: "mousemove", pointerup: "mouseup" };
  for (const [name, mouseEvent] of Object.entries(names)) {
    over.addEventListener(name, (event) => {
      if (event.pointerType !== "touch") return;
      const { clientX, clientY } = event;
      const target = mouseEvent === "mouseup" ? document : over;
      if (mouseEvent === "mousedown") over.dispatchEvent(new MouseEvent("mouseenter"));
      target.dispatchEvent(new MouseEvent(mouseEvent, { clientX, clientY, movementX: 1, button: 0, bubbles: true }));
    });
  }
  // The browser has started to scroll: cancel the selection.
  over.addEventListener("pointercancel", () => {
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    document.dispatchEvent(new MouseEvent("mouseup", { button: 0, bubbles: true }));
  });
}

// `update(from, to)` shows the button while a window is selected.
export function zoomReset(reset) {
  const button = h("button.strong.small", { hidden: true, onclick: (event) => {
    event.preventDefault(); // In a section's heading, it would close the section.
    reset();
  } }, "Reset zoom");
  return { button, update: (from, to) => { button.hidden = from === undefined && to === undefined; } };
}
