// The last samples before an alert, as a small chart and as a table. A vertical line marks a value that is not finite.

import { h, svg, table } from "/static/dom.js";
import { number, real, when } from "/static/format.js";

const WIDTH = 600;
const HEIGHT = 120;
const EDGE = 6;

export function sampleChart({ key, rank, points }) {
  if (!points.length) return null;
  const values = points.map(([, , value]) => real(value));
  const finite = values.filter(Number.isFinite);
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const [first, last] = [points[0], points.at(-1)];
  const steps = first === last ? `step ${first[0]}` : `steps ${first[0]} to ${last[0]}`;
  const text = `${key} of rank ${rank}, ${steps}; the last is ${number(last[2])}`;
  return h("figure.samples", {},
    h("figcaption.quiet", {}, `${text}.`),
    h("div.sides", { "aria-hidden": "true" }, h("span", {}, finite.length ? number(high) : ""),
      h("span", {}, finite.length && high > low ? number(low) : "")),
    drawing(values, low, high, text),
    h("div.ends", { "aria-hidden": "true" }, h("span", {}, `step ${first[0]}`),
      h("span", {}, first === last ? "" : last[0])),
    h("details", {}, h("summary", {}, "As a table"), samples(key, points)));
}

function drawing(values, low, high, label) {
  const x = (index) => EDGE + (index / Math.max(1, values.length - 1)) * (WIDTH - 2 * EDGE);
  const y = (value) => HEIGHT - EDGE - (high > low ? (value - low) / (high - low) : 0.5) * (HEIGHT - 2 * EDGE);
  let pen = "M";
  const line = values.map((value, index) => {
    const piece = Number.isFinite(value) ? `${pen}${x(index).toFixed(1)} ${y(value).toFixed(1)}` : "";
    pen = piece ? "L" : "M";
    return piece;
  });
  // A dot is a line of zero length with round ends: it stays round when the chart is stretched.
  const dots = values.map((value, index) =>
    Number.isFinite(value) && `M${x(index).toFixed(1)} ${y(value).toFixed(1)}h0`);
  const bad = values.map((value, index) => !Number.isFinite(value) && `M${x(index).toFixed(1)} 0V${HEIGHT}`);
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("path.gaps", { d: bad.filter(Boolean).join("") }),
    svg("path", { d: line.join("") }),
    svg("path.dots", { d: dots.filter(Boolean).join("") }),
  );
}

function samples(key, points) {
  const lines = points.map(([step, time, value]) =>
    h("tr", {}, h("td.number", {}, step), h("td", {}, when(time)), h("td.number", {}, number(value, 9))));
  const columns = [["Step", "number"], "Time", [key, "number"]];
  return table(columns, lines, "table", { "aria-label": `Samples of ${key}` });
}
