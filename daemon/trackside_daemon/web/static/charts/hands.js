// What a person does with a chart, by keys, by shift and mouse or wheel, and by a finger.

import { say } from "/static/dom.js";

// Arrows move the cursor, with shift the window; + and - zoom round the cursor, Home shows all.
export function keys(chart, event) {
  const { u } = chart;
  const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!u || event.ctrlKey || event.metaKey || event.altKey) return;
  if (direction && event.shiftKey) slide(chart, direction * 0.2);
  else if (direction) move(chart, direction);
  else if (event.key === "+" || event.key === "=") narrow(chart, 0.5);
  else if (event.key === "-") narrow(chart, 2);
  else if (event.key === "Home") chart.zoom();
  else if (event.key === "Escape") u.setCursor({ left: -10, top: -10 });
  else return;
  event.preventDefault();
}

function move(chart, direction) {
  const { u } = chart;
  const [from, to] = [u.scales.x.min, u.scales.x.max];
  const places = u.data[0].flatMap((x, place) => (x >= from && x <= to ? [place] : []));
  if (!places.length) return;
  const shown = u.cursor.left >= 0 && u.cursor.idx !== null && u.cursor.idx !== undefined;
  const next = shown ? u.cursor.idx + direction : places.at(-1);
  const place = Math.max(places[0], Math.min(places.at(-1), next));
  u.setCursor({ left: u.valToPos(u.data[0][place], "x"), top: u.over.clientHeight / 2 });
  say(chart.spoken, chart.heard.filter(Boolean).join(", "));
}

function narrow(chart, factor) {
  const { u } = chart;
  const { min, max } = u.scales.x;
  const middle = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : (min + max) / 2;
  const [low, high] = whole(chart);
  const from = Math.max(low, middle - (middle - min) * factor);
  const to = Math.min(high, middle + (max - middle) * factor);
  if (from <= low && to >= high) chart.zoom();
  else chart.zoom(from, to);
}

function slide(chart, part) {
  const { min, max } = chart.u.scales.x;
  chart.zoom(min + part * (max - min), max + part * (max - min));
}

// As far as is known: what a zoomed chart has loaded is not all.
function whole(chart) {
  if (chart.from === undefined) return [chart.u.scales.x.min, chart.u.scales.x.max];
  return chart.all ?? [-Infinity, Infinity];
}

// Drags the window along with the mouse, and loads at the end.
export function pan(chart, event) {
  const { u } = chart;
  const { min, max } = u.scales.x;
  const ending = new AbortController();
  const shift = (now) => ((event.clientX - now.clientX) / u.over.clientWidth) * (max - min);
  const show = (now) => chart.slid(min + shift(now), max + shift(now));
  addEventListener("mousemove", show, { signal: ending.signal });
  addEventListener("mouseup", (now) => {
    ending.abort();
    chart.zoom(min + shift(now), max + shift(now));
  }, { signal: ending.signal });
  event.preventDefault();
}

// The wheel with shift pans; without, it is the page's.
export function wheel(chart) {
  let rest;
  chart.plot.addEventListener("wheel", (event) => {
    if (!event.shiftKey || !chart.u) return;
    event.preventDefault();
    const { min, max } = chart.u.scales.x;
    const shift = (Math.sign(event.deltaY || event.deltaX) * (max - min)) / 10;
    chart.slid(min + shift, max + shift);
    clearTimeout(rest);
    rest = setTimeout(() => chart.zoom(chart.from, chart.to), 200);
  }, { passive: false });
}

// A finger that moves sideways is a mouse to uPlot, which knows no other, and takes one without a movement for none; up and
// down scrolls the page.
export function touch(u) {
  const { over } = u;
  const names = { pointerdown: "mousedown", pointermove: "mousemove", pointerup: "mouseup" };
  for (const [name, mouse] of Object.entries(names)) {
    over.addEventListener(name, (event) => {
      if (event.pointerType !== "touch") return;
      const { clientX, clientY } = event;
      const target = mouse === "mouseup" ? document : over;
      if (mouse === "mousedown") over.dispatchEvent(new MouseEvent("mouseenter"));
      target.dispatchEvent(new MouseEvent(mouse, { clientX, clientY, movementX: 1, button: 0, bubbles: true }));
    });
  }
  // The browser scrolls instead: nothing was chosen.
  over.addEventListener("pointercancel", () => {
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    document.dispatchEvent(new MouseEvent("mouseup", { button: 0, bubbles: true }));
  });
}
