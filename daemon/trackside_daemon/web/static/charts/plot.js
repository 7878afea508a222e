// How a chart looks: uPlot's options, and what is painted beside its lines: bands, marks, and samples that are no numbers.

import { color, named } from "/static/charts/colors.js";
import { extent, nearest } from "/static/charts/lines.js";
import { span } from "/static/words.js";

const FONT = "12px system-ui, sans-serif";
const DASHES = [[], [6, 4], [2, 3]];

// uPlot's options for a view: { by, log, smooth, tell, binary, range, window(), drawn: [{ line, columns }], marks: [{ x,
// text, severity, alert }], sync }, and what it is told: { selected(from, to), moved(u), pan(event) }.
export function options(view, told) {
  const series = view.drawn.flatMap(({ line }) => strokes(line, view.smooth));
  return {
    width: view.width,
    height: view.height,
    padding: [10, 18, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: view.by === "time", range: () => view.window() },
      y: { distr: view.log ? 3 : 1, range: () => heights(view) },
    },
    axes: axes(view),
    series: [{}, ...series],
    cursor: {
      drag: { x: true, y: false, setScale: false, dist: 4 },
      focus: { prox: -1 },
      points: { size: 6, show: view.drawn.length <= 8 },
      y: false,
      sync: view.sync ? { key: view.sync, setSeries: false, scales: ["x", null], filters: { pub: passed, sub: passed } } : undefined,
      bind: { mousedown: (u, target, handle) => (event) => (event.shiftKey ? told.pan(event) : handle(event)), dblclick: () => () => told.selected() },
    },
    hooks: {
      drawAxes: [(u) => clipped(u, () => view.drawn.forEach((one) => band(u, one)))],
      draw: [(u) => clipped(u, () => paintMarks(u, view)), (u) => odd(u, view)],
      setCursor: [told.moved],
      setSelect: [(u) => select(u, told)],
    },
  };
}

const passed = (type) => type === "mousemove" || type === "mouseleave";

function strokes({ place }, smooth) {
  const stroke = () => color(place);
  const dash = DASHES[Math.floor(place / 8) % DASHES.length];
  const base = { stroke, dash, width: 1.5, points: { show: false, filter: alone, size: 4, fill: stroke } };
  return smooth ? [{ ...base, width: 1, alpha: 0.35 }, { ...base, width: 2 }] : [base];
}

// Values with nothing on either side, which no line shows.
function alone(u, number, show) {
  if (show) return null;
  const values = u.data[number];
  const bare = (place, by) => {
    let next = place + by;
    while (next >= 0 && next < values.length && values[next] === undefined) next += by;
    return !Number.isFinite(values[next]);
  };
  return values.flatMap((value, place) => (Number.isFinite(value) && bare(place, -1) && bare(place, 1) ? [place] : []));
}

function axes(view) {
  const common = { stroke: () => named("quiet"), font: FONT, grid: { stroke: () => named("line"), width: 1 }, ticks: { show: false } };
  const values = (u, splits) => splits.map((one) => (one === null ? "" : view.tell(one)));
  const width = (u, texts) => {
    if (!texts) return 50;
    u.ctx.font = u.axes[1].font[0];
    return Math.max(44, 14 + Math.max(...texts.map((text) => u.ctx.measureText(text).width)) / devicePixelRatio);
  };
  const twos = view.binary ? { incrs: Array.from({ length: 60 }, (_, power) => 2 ** power) } : { incrs: FINE };
  const close = view.log ? { splits: between, filter: (u, splits) => splits } : {};
  return [
    { ...common, size: 26, ...(AXES[view.by] ?? { space: 95, values: times }) },
    { ...common, size: width, space: 34, values, ...twos, ...close },
  ];
}

// A loss that runs away is larger than uPlot reckons with.
const FINE = Array.from({ length: 330 }, (_, power) => [1, 2, 5].map((one) => Number(`${one}e${power - 24}`))).flat().filter(Number.isFinite);

const CLOCK = [
  ...[0.001, 0.01, 0.1].flatMap((one) => [one, 2 * one, 5 * one]),
  ...[1, 60].flatMap((unit) => [1, 2, 5, 10, 15, 30].map((one) => one * unit)),
  ...[1, 2, 3, 6, 12].map((hours) => 3600 * hours),
  ...Array.from({ length: 12 }, (_, power) => 86400 * 2 ** power),
];
const spans = (u, splits) => splits.map((one) => (one ? span(one) : "0"));
const ROUND = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();

const AXES = { step: { space: 70, values: steps, incrs: ROUND }, relative: { space: 70, values: spans, incrs: CLOCK } };

function steps(u, splits) {
  const known = splits.filter((one) => one !== null);
  for (const [unit, size] of [["M", 1e6], ["k", 1e3]]) {
    if (Math.max(...known) >= 10 * size && known.every((one) => one % (size / 10) === 0)) return splits.map((one) => (one ? `${one / size}${unit}` : "0"));
  }
  return splits.map((one) => (Number.isInteger(one) ? String(one) : ""));
}

function times(u, splits, axis, space, every) {
  const two = (one) => String(one).padStart(2, "0");
  const days = u.scales.x.max - u.scales.x.min > 86400;
  return splits.map((one) => {
    const at = new Date(1000 * one);
    const day = days ? `${two(at.getMonth() + 1)}-${two(at.getDate())}` : "";
    const seconds = every < 60 ? `:${two(at.getSeconds())}` : "";
    return every >= 86400 ? day : `${day} ${two(at.getHours())}:${two(at.getMinutes())}${seconds}`.trim();
  });
}

// Places of an axis by powers: of ten, with 2 and 5 between where they are few; round ones where it spans less than that.
function between(u, axis, low, high) {
  const decades = Math.log10(high / low);
  if (decades < 1) {
    const raw = (high - low) / 5;
    const power = 10 ** Math.floor(Math.log10(raw));
    const pace = [1, 2, 5, 10].find((one) => one * power >= raw) * power;
    const first = Math.ceil(low / pace);
    return Array.from({ length: Math.floor(high / pace) - first + 1 }, (_, place) => Number(((first + place) * pace).toPrecision(12)));
  }
  const every = Math.ceil(decades / 6);
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    if (power % every === 0) found.push(...(decades < 3 ? [1, 2, 5] : [1]).map((one) => Number(`${one}e${power}`)));
  }
  return found.filter((one) => one >= low && one <= high);
}

function heights({ drawn, window, log, range = [] }) {
  const found = extent(drawn.map((one) => one.columns), ...window());
  if (!found) return log ? [1, 10] : [range[0] ?? 0, range[1] ?? 1];
  let [low, high] = found;
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  low = range[0] <= low ? range[0] : low - pad;
  high = range[1] >= high ? range[1] : high + pad;
  return [low, high];
}

function clipped(u, paint) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  paint();
  u.ctx.restore();
}

// From the lowest to the highest of each bucket, piece by piece between gaps.
function band(u, { line, columns }) {
  const { x, low, high } = columns;
  u.ctx.fillStyle = color(line.place);
  u.ctx.globalAlpha = 0.16;
  const draw = (start, end) => {
    u.ctx.beginPath();
    for (let place = start; place < end; place += 1) u.ctx.lineTo(u.valToPos(x[place], "x", true), u.valToPos(high[place], "y", true));
    for (let place = end - 1; place >= start; place -= 1) u.ctx.lineTo(u.valToPos(x[place], "x", true), u.valToPos(low[place], "y", true));
    u.ctx.fill();
  };
  let start = 0;
  for (let place = 0; place <= x.length; place += 1) {
    if (place < x.length && low[place] !== null) continue;
    if (place - start > 1) draw(start, place);
    start = place + 1;
  }
  u.ctx.globalAlpha = 1;
}

const MARK = { critical: "bad", warning: "warn" };

// Alerts have a triangle, events a square.
function paintMarks(u, { marks }) {
  const size = 5 * devicePixelRatio;
  for (const { x, severity, alert } of marks) {
    const at = Math.round(u.valToPos(x, "x", true)) + 0.5;
    u.ctx.strokeStyle = u.ctx.fillStyle = named(MARK[severity] ?? "quiet");
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    u.ctx.globalAlpha = alert ? 0.9 : 0.3;
    u.ctx.beginPath();
    u.ctx.moveTo(at, u.bbox.top);
    u.ctx.lineTo(at, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
    u.ctx.globalAlpha = alert ? 1 : 0.7;
    u.ctx.beginPath();
    if (alert) for (const [right, down] of [[-size, 0], [size, 0], [0, 1.6 * size]]) u.ctx.lineTo(at + right, u.bbox.top + down);
    else u.ctx.rect(at - size / 2, u.bbox.top, size, size);
    u.ctx.fill();
  }
  u.ctx.globalAlpha = 1;
  u.ctx.setLineDash([]);
}

// A cross at the bottom edge for each bucket with NaN or infinities, in its line's colour.
function odd(u, { drawn, window }) {
  const [from, to] = window();
  const size = 3 * devicePixelRatio;
  const bottom = u.bbox.top + u.bbox.height - size - 1;
  u.ctx.lineWidth = 1.5 * devicePixelRatio;
  for (const { line, columns } of drawn) {
    u.ctx.strokeStyle = color(line.place);
    u.ctx.beginPath();
    for (const x of columns.odd) {
      if (x < from || x > to) continue;
      const at = u.valToPos(x, "x", true);
      u.ctx.moveTo(at - size, bottom - size);
      u.ctx.lineTo(at + size, bottom + size);
      u.ctx.moveTo(at + size, bottom - size);
      u.ctx.lineTo(at - size, bottom + size);
    }
    u.ctx.stroke();
  }
}

function select(u, told) {
  const { left, width } = u.select;
  if (width < 4) return;
  u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  told.selected(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
}

// What the lines have nearest to a place of the axis: the last value there, as it came.
export function valuesAt(drawn, x) {
  return drawn.map(({ line, columns }) => {
    const place = nearest(columns.x, x);
    return place < 0 ? { line } : { line, x: columns.x[place], value: columns.told[place] };
  });
}
