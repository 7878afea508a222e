// Plots of layers on a canvas: a map of one value of all layers over steps, and the quantiles of one layer over steps.

import { number } from "/static/format.js";

export const ROW = 14; // Height of a layer in the map, in pixels.
const TALLEST = 720;
const TOP = 4;
const NAMES = 190; // Width of the names of the layers.
const AXIS = 26;
const BANDS = [["0.05", "0.95", 0.18], ["0.25", "0.75", 0.38]];
// Colors from low to high that also differ in lightness (viridis), and around zero for differences.
const RISING = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const AROUND = [[5, 80, 174], [130, 180, 230], [235, 235, 235], [240, 160, 110], [170, 50, 10]];

// Returns { position(value) from 0 to 1, low, high } of a map; logarithmic if the values are positive and far apart.
function scaleOf(rows, around, linear) {
  const values = rows.flat().filter(Number.isFinite);
  if (!values.length) return { low: 0, high: 0, log: false, position: () => 0 };
  if (around) {
    const most = values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
    return { low: -most, high: most, log: false, position: (value) => (value / most + 1) / 2 };
  }
  const positive = values.filter((value) => value > 0);
  const low = values.reduce((least, value) => Math.min(least, value), Infinity);
  const high = values.reduce((most, value) => Math.max(most, value), -Infinity);
  const least = positive.reduce((least, value) => Math.min(least, value), Infinity);
  if (!linear && low >= 0 && high > 20 * least) {
    const [from, span] = [Math.log(least), Math.log(high / least)];
    return { low: least, high, log: true, position: (value) => (value > 0 ? (Math.log(value) - from) / span : 0) };
  }
  return { low, high, log: false, position: (value) => (high > low ? (value - low) / (high - low) : 0.5) };
}

export function color(position, around) {
  const colors = around ? AROUND : RISING;
  const at = Math.min(1, Math.max(0, position)) * (colors.length - 1);
  const first = Math.min(Math.floor(at), colors.length - 2);
  return colors[first].map((from, channel) => Math.round(from + (colors[first + 1][channel] - from) * (at - first)));
}

// Draws a map, and returns { layerAt(y), columnAt(x) } for a pointer. `at` are the places of the columns on the axis.
export function drawMap(canvas, { layers, at, values }, /** @type {MapLook} */ look) {
  const { around = false, linear = false, chosen, label } = look;
  const row = Math.max(3, Math.min(ROW, Math.floor(TALLEST / Math.max(1, layers.length))));
  const { context, width } = prepare(canvas, layers.length * row + AXIS);
  context.translate(0, TOP); // Half of a name, of rows that are lower than names.
  const scale = scaleOf(values, around, linear);
  const image = new ImageData(Math.max(1, at.length), Math.max(1, layers.length));
  values.forEach((line, y) => line.forEach((value, x) => {
    if (Number.isFinite(value)) image.data.set([...color(scale.position(value), around), 255], 4 * (y * at.length + x));
  }));
  const cells = new OffscreenCanvas(image.width, image.height);
  cells.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  const x = axisOf(at, width);
  x.edges.slice(1).forEach((end, column) => {
    const begin = Math.floor(x.edges[column]);
    context.drawImage(cells, column, 0, 1, image.height, begin, 0, Math.max(1, Math.floor(end) - begin),
      layers.length * row);
  });
  context.textBaseline = "middle";
  const every = Math.ceil(11 / row); // Names that fit.
  const marked = layers.indexOf(chosen);
  layers.forEach((name, y) => {
    // The name of the chosen layer is there.
    const hidden = marked >= 0 && y !== marked && Math.abs(y - marked) < every;
    if ((y % every === 0 && !hidden) || name === chosen) text(context, shortened(context, name), 0, (y + 0.5) * row);
    if (name === chosen) context.strokeRect(NAMES + 0.5, y * row + 0.5, width - NAMES - 1, row - 1);
  });
  drawAxis(context, at, x, layers.length * row, label);
  const columnAt = (place) =>
    (place < NAMES ? undefined : x.edges.findIndex((edge, column) => column > 0 && place < edge) - 1);
  return { scale, layerAt: (y) => layers[Math.floor((y - TOP) / row)], columnAt };
}

// Returns { edges, middle(column), width }: the pixels of columns at these places, each reaching half-way to the next.
export function axisOf(at, width) {
  const halves = at.slice(1).map((place, column) => (place + at[column]) / 2);
  const [first, last] = [at[0], at.at(-1)];
  const bounds = at.length > 1
    ? [2 * first - halves[0], ...halves, 2 * last - halves.at(-1)] : [first - 0.5, first + 0.5];
  const pixel = (place) => NAMES + ((place - bounds[0]) / (bounds.at(-1) - bounds[0] || 1)) * (width - NAMES);
  return { edges: at.length ? bounds.map(pixel) : [], middle: (column) => pixel(at[column]), width };
}

// Draws the quantiles of a layer as bands around its median; of a head of attention, a line of one value.
export function drawBands(canvas, found, value, { at, label }) {
  const { context, width, ink, accent } = prepare(canvas, 200);
  const height = 200 - AXIS;
  const lines = Object.keys(found.quantiles).length && found.quantiles["0.5"].some(Number.isFinite)
    ? found.quantiles : { [value]: found.columns.map((item) => item[value]) };
  const shown = lines === found.quantiles
    ? BANDS.flatMap(([low, high]) => [...lines[low], ...lines[high]]) : Object.values(lines).flat();
  const finite = shown.filter(Number.isFinite);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const x = axisOf(at, width);
  const y = (value) => 6 + (1 - (value - low) / (high - low || 1)) * (height - 12);
  const path = (values) =>
    values.forEach((value, column) => Number.isFinite(value) && context.lineTo(x.middle(column), y(value)));
  context.fillStyle = context.strokeStyle = accent;
  if (lines === found.quantiles) {
    for (const [from, to, alpha] of BANDS) {
      context.globalAlpha = alpha;
      context.beginPath();
      path(lines[from]);
      [...lines[to].keys()].reverse().forEach((column) =>
        Number.isFinite(lines[to][column]) && context.lineTo(x.middle(column), y(lines[to][column])));
      context.fill();
    }
    context.globalAlpha = 1;
  }
  for (const values of lines === found.quantiles ? [lines["0.5"]] : Object.values(lines)) {
    context.beginPath();
    path(values);
    context.stroke();
  }
  context.fillStyle = ink;
  for (const value of [low, high])
    text(context, number(value, 4), NAMES - 8 - context.measureText(number(value, 4)).width, y(value));
  drawAxis(context, at, x, height, label);
}

function prepare(canvas, height) {
  const width = Math.max(320, canvas.parentElement.clientWidth);
  const ratio = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const styles = getComputedStyle(canvas);
  context.font = `11px ${styles.fontFamily}`;
  context.textBaseline = "middle";
  const [ink, accent] = [styles.getPropertyValue("--ink"), styles.getPropertyValue("--accent")];
  context.fillStyle = context.strokeStyle = ink;
  return { context, width, ink, accent };
}

function text(context, content, x, y) {
  context.fillText(content, x, y);
}

function shortened(context, name) {
  if (context.measureText(name).width <= NAMES - 8) return name;
  let end = name;
  // The end tells layers apart.
  while (end.length > 1 && context.measureText(`…${end}`).width > NAMES - 8) end = end.slice(1);
  return `…${end}`;
}

function drawAxis(context, at, { edges, middle, width }, top, label) {
  const half = (NAMES + width) / 2;
  const center = edges.findIndex((edge, column) => column > 0 && half < edge) - 1;
  context.textBaseline = "top";
  for (const column of new Set(at.length ? [0, Math.max(0, center), at.length - 1] : [])) {
    const written = label(at[column]);
    const wide = context.measureText(written).width;
    context.fillText(written, Math.min(Math.max(NAMES, middle(column) - wide / 2), width - wide), top + 6);
  }
  context.textBaseline = "middle";
}
