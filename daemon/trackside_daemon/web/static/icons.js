// Icons, drawn as strokes in the color of the text.

import { h, svg } from "/static/dom.js";

const PATHS = {
  full: "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4",
  png: "M8 2v8M4.5 6.5 8 10l3.5-3.5M2 13.5h12",
  settings: "M2 4.5h7M13 4.5h1M2 11.5h1M7 11.5h7M11 2.5v4M5 9.5v4",
  hide: "M4 4l8 8M12 4l-8 8",
  pin: "M5.5 2h5l-.8 4.5L12 9H4l2.3-2.5zM8 9v5",
  drag: "M5.5 3.5h.01M10.5 3.5h.01M5.5 8h.01M10.5 8h.01M5.5 12.5h.01M10.5 12.5h.01",
  overview: "M2 2.5h5v5H2zM9 2.5h5v3H9zM9 7.5h5v6H9zM2 9.5h5v4H2z",
  runs: "M2 3.5h12M2 8h12M2 12.5h12M5.5 2v12",
  compare: "M2 12.5 6 7l3 2.5L14 3M2 8.5l4-5 4 9 4-3",
  system: "M4 4h8v8H4zM6.5 6.5h3v3h-3zM6 2v2M10 2v2M6 12v2M10 12v2M2 6h2M2 10h2M12 6h2M12 10h2",
  alerts: "M8 2a4 4 0 0 1 4 4c0 4 1.5 5 1.5 5h-11S4 10 4 6a4 4 0 0 1 4-4zM6.5 13.5h3",
  export: "M8 10V2M4.5 5.5 8 2l3.5 3.5M2 9.5v4h12v-4",
  theme: "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
  help: "M5.5 6a2.5 2.5 0 1 1 3.6 2.2C8.3 8.6 8 9 8 10M8 12.6h.01",
};

// Returns the picture of an icon; it is hidden from screen readers.
export function picture(name) {
  return svg("svg.picture", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}

// Returns a button that shows only an icon, with its label for screen readers and as a title.
export function icon(name, label, onclick) {
  return h("button.icon", { "aria-label": label, title: label, onclick }, picture(name));
}
