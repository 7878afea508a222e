// The look of a chart: uPlot's options, and what is drawn beside its lines: bands, marks and non-finite samples.

import { dashOf, seriesColor, themeColor } from "/static/charts/colors.js";
import { extent, nearest, nonfiniteSpans, robustExtent, turningPoint } from "/static/charts/lines.js";
import { roundSplits, tickTexts } from "/static/charts/ticks.js";
import { number } from "/static/format.js";

export const FONT = "12px Inter, system-ui, sans-serif";

const LABEL_FONT = "11px Inter, system-ui, sans-serif";
const MOST_LINES = 12; // With more lines, labels would cover each other.
const MOST_CHARACTERS = 16;
const END_CHARACTERS = 10; // Names differ at their ends.
const LINE_HEIGHT = 12;
const GAP = 5;
const measure = document.createElement("canvas").getContext("2d");
const widths = new Map();
document.fonts?.addEventListener("loadingdone", () => widths.clear());

// Returns the width of a text, from those of its characters, of which there are few.
function textWidth(text, font) {
  let width = 0;
  for (const character of text) {
    const name = font + character;
    if (!widths.has(name)) {
      measure.font = font;
      widths.set(name, measure.measureText(character).width);
    }
    width += widths.get(name);
  }
  return width;
}

// Returns uPlot's options for a view and handlers { onSelect(from, to), onMove(u), onPan(event) }.
/** @returns {uPlot.Options} */
export function options(/** @type {View} */ view, handlers) {
  const series = view.drawn.flatMap(({ line }) => seriesOptions(line, view));
  return {
    width: view.width,
    height: view.height,
    padding: [10, endLabelWidth(view), 0, 0],
    legend: { show: false },
    focus: { alpha: 0.15 },
    scales: {
      x: { time: view.by === "time", range: () => view.window() },
      y: { distr: view.log ? 3 : 1, range: () => valueRange({ ...view, drawn: view.drawn.filter(isLeft) }) },
      right: { distr: view.log ? 3 : 1, range: () => valueRange({ ...view, low: undefined, high: undefined,
        drawn: view.drawn.filter((item) => !isLeft(item)) }) },
    },
    axes: axes(view),
    series: [{}, ...series],
    cursor: {
      drag: { x: true, y: false, setScale: false, dist: 4 },
      focus: { prox: -1 },
      points: { size: 6, show: view.drawn.length <= 8 },
      y: false,
      sync: view.sync && { ...SYNC, key: view.sync },
      bind: { mousedown: (u, target, handle) => (event) => (event.shiftKey ? handlers.onPan(event) : handle(event)),
        dblclick: () => () => handlers.onSelect() },
    },
    hooks: {
      drawAxes: [(u) => view.stacked || withClip(u, () => {
        view.drawn.forEach((item) => drawBand(u, item));
        drawTurn(u, view);
      })],
      draw: [(u) => withClip(u, () => drawMarks(u, view)), (u) => nonfinite(u, view), (u) => drawEndLabels(u, view)],
      // All plots at once: one by one, each after the texts of the one before, each would compute the page's layout.
      syncRect: [(u) => view.sync && u.over.matches(":hover") &&
        uPlot.sync(view.sync).plots.forEach((other) => other !== u && other.syncRect())],
      setCursor: [handlers.onMove],
      setSelect: [(u) => select(u, handlers)],
    },
  };
}

const isPointerEvent = (type) => type === "mousemove" || type === "mouseleave";
/** @type {uPlot.Cursor.Sync} */
const SYNC = { key: "", setSeries: false, scales: ["x", null], filters: { pub: isPointerEvent, sub: isPointerEvent } };

const isLeft = ({ line }) => !line.right;
const scaleOf = (line) => (line.right ? "right" : "y");

function seriesOptions(line, /** @type {View} */ { smooth, stacked }) {
  const { index } = line;
  const stroke = () => seriesColor(index);
  const [, dash] = dashOf(index);
  const points = { show: false, filter: isolatedPoints, size: 4, fill: stroke };
  const base = { stroke, dash, scale: scaleOf(line), width: 1.5, points };
  if (stacked) return [{ ...base, fill: () => seriesColor(index), width: 1 }];
  return smooth ? [{ ...base, width: 1, alpha: 0.3 }, { ...base, width: 2 }] : [base];
}

// Returns the indexes of values without neighbors, which no line shows.
function isolatedPoints(u, number, show) {
  if (show) return null;
  const values = u.data[number];
  const bare = (index, by) => {
    let next = index + by;
    while (next >= 0 && next < values.length && values[next] === undefined) next += by;
    return !Number.isFinite(values[next]);
  };
  return values.flatMap((value, index) => (Number.isFinite(value) && bare(index, -1) && bare(index, 1) ? [index] : []));
}

function axes(view) {
  const common = { stroke: () => themeColor("quiet"), font: FONT, grid: { stroke: () => themeColor("line"), width: 1 },
    ticks: { show: false } };
  const values = (u, splits) => (view.format === number
    ? tickTexts(splits, view.log) : splits.map((item) => (item === null ? "" : view.format(item))));
  const width = (u, texts) => (texts ? Math.max(44, 14 + Math.max(...texts.map((text) => textWidth(text, FONT)))) : 50);
  const increments = view.binary
    ? { incrs: Array.from({ length: 60 }, (_, power) => 2 ** power) } : { incrs: INCREMENTS };
  const logSplitOptions = view.log ? { splits: logSplits, filter: (u, splits) => splits } : {};
  return [
    { ...common, size: 26, label: view.axisTitle ?? view.axis?.name, labelSize: 16, labelFont: FONT, labelGap: -2,
      ...(view.axis ? ownAxis(view.axis) : (AXES[view.by] ?? OTHER_AXIS)) },
    { ...common, size: width, space: 34, values, ...increments, ...logSplitOptions },
    { ...common, scale: "right", side: 1, show: !view.drawn.every(isLeft), size: width, space: 34, values,
      ...increments, ...logSplitOptions, grid: { show: false } },
  ];
}

// uPlot's default increments are too small for a diverging loss.
const INCREMENTS = Array.from({ length: 330 }, (_, power) => [1, 2, 5].map((item) => Number(`${item}e${power - 24}`)))
  .flat().filter(Number.isFinite);

const DURATION_INCREMENTS = [
  ...[0.001, 0.01, 0.1].flatMap((item) => [item, 2 * item, 5 * item]),
  ...[1, 60].flatMap((unit) => [1, 2, 5, 10, 15, 30].map((item) => item * unit)),
  ...[1, 2, 3, 6, 12].map((hours) => 3600 * hours),
  ...Array.from({ length: 12 }, (_, power) => 86400 * 2 ** power),
];
// All in one unit: seconds, minutes and seconds, or hours and minutes.
function formatDurations(u, splits) {
  const largest = Math.max(...splits.filter((item) => item !== null));
  const two = (value) => String(value).padStart(2, "0");
  if (largest < 60) return splits.map((item) => `${Number(item.toPrecision(6))} s`);
  if (largest < 3600) return splits.map((item) => `${Math.floor(item / 60)}:${two(Math.round(item % 60))} min`);
  return splits.map((item) => `${Math.floor(item / 3600)}:${two(Math.round((item % 3600) / 60))} h`);
}

const STEP_INCREMENTS = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((item) => item * 10 ** power)).flat();

const AXES = {
  step: { space: 70, incrs: STEP_INCREMENTS,
    values: (u, splits) => tickTexts(splits.map((item) => (Number.isInteger(item) ? item : null))) },
  relative: { space: 70, values: formatDurations, incrs: DURATION_INCREMENTS },
  time: { space: 95, values: formatTimes },
};
const OTHER_AXIS = { space: 70, values: (u, splits) => tickTexts(splits), incrs: INCREMENTS };

const ownAxis = ({ splits, label }) => ({ splits: () => splits, values: (u, places) => places.map(label) });

function formatTimes(u, splits, axis, space, interval) {
  const two = (item) => String(item).padStart(2, "0");
  const days = u.scales.x.max - u.scales.x.min > 86400;
  return splits.map((item) => {
    const at = new Date(1000 * item);
    const day = days ? `${two(at.getMonth() + 1)}-${two(at.getDate())}` : "";
    const parts = interval < 1 ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : "";
    const seconds = interval < 60 ? `:${two(at.getSeconds())}${parts}` : "";
    return interval >= 86400 ? day : `${day} ${two(at.getHours())}:${two(at.getMinutes())}${seconds}`.trim();
  });
}

// Returns axis positions: powers of ten, with 2 and 5 in between if there are few; round values below one decade.
function logSplits(u, axis, low, high) {
  const decades = Math.log10(high / low);
  if (decades < 1) return roundSplits(low, high);
  const interval = Math.ceil(decades / 6);
  const result = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    if (power % interval === 0)
      result.push(...(decades < 3 ? [1, 2, 5] : [1]).map((item) => Number(`${item}e${power}`)));
  }
  return result.filter((item) => item >= low && item <= high);
}

/** @returns {[number, number]} */
function valueRange(/** @type {View} */ { drawn, window, log, robust, low: fixedLow, high: fixedHigh, range = [] }) {
  const extremes = robust ? robustExtent : extent;
  const result = extremes(drawn.map((item) => item.columns), ...window());
  const empty = log ? [1, 10] : [range[0] ?? 0, range[1] ?? 1];
  const [low, high] = result ? padded(...result, log, range) : empty;
  const lowest = Number.isFinite(fixedLow) && !(log && fixedLow <= 0) ? fixedLow : low;
  const highest = Number.isFinite(fixedHigh) ? fixedHigh : high;
  return lowest < highest ? [lowest, highest] : [low, high];
}

const LEAST_SPAN = 1e-3; // Of an axis, as a part of its values.

/** @returns {[number, number]} */
function padded(low, high, log, range) {
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  const size = Math.max(Math.abs(low), Math.abs(high));
  // Noise of a value that stays the same is flat.
  const pad = low === high ? 0.1 * size || 1 : Math.max(0.06 * (high - low), (LEAST_SPAN * size - (high - low)) / 2);
  return [range[0] <= low ? range[0] : low - pad, range[1] >= high ? range[1] : high + pad];
}

function withClip(u, paint) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  paint();
  u.ctx.restore();
}

// Fills the area between the lowest and highest value of each bucket, between gaps.
function drawBand(u, { line, columns }) {
  const { x, low, high } = columns;
  u.ctx.fillStyle = seriesColor(line.index);
  u.ctx.globalAlpha = 0.14;
  const draw = (start, end) => {
    u.ctx.beginPath();
    for (let index = start; index < end; index += 1)
      u.ctx.lineTo(u.valToPos(x[index], "x", true), u.valToPos(high[index], scaleOf(line), true));
    for (let index = end - 1; index >= start; index -= 1)
      u.ctx.lineTo(u.valToPos(x[index], "x", true), u.valToPos(low[index], scaleOf(line), true));
    u.ctx.fill();
  };
  let start = 0;
  for (let index = 0; index <= x.length; index += 1) {
    if (index < x.length && low[index] !== null) continue;
    if (index - start > 1) draw(start, index);
    start = index + 1;
  }
  u.ctx.globalAlpha = 1;
}

// Shades what lies between the training and its evaluation since the evaluation turned away, and says how far it is.
function drawTurn(u, /** @type {View} */ { drawn, turn, format, by }) {
  if (!turn || drawn.length !== 2) return;
  const [training, { columns }] = drawn;
  const best = turningPoint(columns, turn);
  if (best === undefined) return;
  const place = (x, y) => u.ctx.lineTo(u.valToPos(x, "x", true), u.valToPos(y, "y", true));
  const since = columns.x.flatMap((x, index) => (index >= best && columns.mean[index] !== null ? [index] : []));
  u.ctx.fillStyle = themeColor("warn");
  u.ctx.globalAlpha = 0.15;
  u.ctx.beginPath();
  for (const index of since) place(columns.x[index], columns.mean[index]);
  for (const index of since.reverse()) {
    const below = training.columns.mean[nearest(training.columns.x, columns.x[index])];
    place(columns.x[index], below ?? columns.mean[index]);
  }
  u.ctx.fill();
  u.ctx.globalAlpha = 1;
  const ratio = devicePixelRatio;
  u.ctx.font = LABEL_FONT.replace("11px", `${11 * ratio}px`);
  const change = columns.mean[since[0]] - columns.mean[best];
  const step = by === "step" ? ` at step ${number(columns.x[best])}` : "";
  const text = `best ${format(columns.mean[best])}${step}, ${change > 0 ? "+" : ""}${format(change, 2)} since`;
  const right = u.bbox.left + u.bbox.width - u.ctx.measureText(text).width;
  const left = Math.min(u.valToPos(columns.x[best], "x", true), right);
  u.ctx.textAlign = "left";
  u.ctx.fillText(text, Math.max(left, u.bbox.left + 4 * ratio), u.bbox.top + 12 * ratio);
}

const MARK = { critical: "bad", warning: "warn" };

const MOST_EVENT_LINES = 20; // With more events, only their squares are drawn.
const HATCH = 9; // Distance of the lines in pixels.
const MOST_HATCHED = 2; // Lines; more would stand behind each other's.
const RIBBON = 4; // Height in pixels of the ribbon of alerts along the axis.

// Draws a triangle for an alert, a square for an event, and ribbons along the axis: while an alert fires, and of bands.
function drawMarks(u, { marks, window }) {
  const size = 5 * devicePixelRatio;
  const bottom = u.bbox.top + u.bbox.height;
  const [from, to] = window();
  const events = marks.filter(({ x, alert }) => !alert && x >= from && x <= to).length;
  const height = RIBBON * devicePixelRatio;
  for (const { x, until, severity, alert, band } of marks) {
    const isBand = band !== undefined;
    const at = Math.round(u.valToPos(x, "x", true)) + 0.5;
    u.ctx.strokeStyle = u.ctx.fillStyle = isBand ? seriesColor(band) : themeColor(MARK[severity] ?? "quiet");
    if (isBand || (alert && severity !== "info")) {
      const end = u.valToPos(Math.min(until ?? Infinity, to), "x", true);
      u.ctx.globalAlpha = 0.75;
      u.ctx.fillRect(at, bottom - (isBand ? 2 : 1) * height, Math.max(2, end - at), height);
    }
    if (isBand) continue;
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    u.ctx.globalAlpha = alert ? 0.9 : 0.3;
    u.ctx.beginPath();
    u.ctx.moveTo(at, u.bbox.top);
    u.ctx.lineTo(at, bottom);
    if (alert || events <= MOST_EVENT_LINES) u.ctx.stroke();
    u.ctx.globalAlpha = alert ? 1 : 0.7;
    u.ctx.beginPath();
    if (alert) for (const [right, down] of [[-size, 0], [size, 0], [0, 1.6 * size]])
      u.ctx.lineTo(at + right, u.bbox.top + down);
    else u.ctx.rect(at - size / 2, u.bbox.top, size, size);
    u.ctx.fill();
  }
  u.ctx.globalAlpha = 1;
  u.ctx.setLineDash([]);
}

// Hatches where a line is NaN or infinite, in red if it is alone; a cross at the bottom edge where that is narrow, or
// where it begins if there are many lines.
function nonfinite(u, { drawn, window }) {
  const [from, to] = window();
  const ratio = devicePixelRatio;
  const [top, height, size] = [u.bbox.top, u.bbox.height, 3 * ratio];
  const bottom = top + height - size - (RIBBON + 2) * ratio;
  for (const [row, { line, columns }] of drawn.entries()) {
    for (const span of nonfiniteSpans(columns)) {
      const [left, right] = span.map((x) => u.valToPos(Math.min(to, Math.max(from, x)), "x", true));
      if (span[1] < from || span[0] > to) continue;
      u.ctx.save();
      const isNarrow = right - left < 2 * size || drawn.length > MOST_HATCHED;
      u.ctx.strokeStyle = u.ctx.fillStyle = isNarrow || drawn.length > 1 ? seriesColor(line.index) : themeColor("bad");
      u.ctx.lineWidth = 1.5 * ratio;
      u.ctx.beginPath();
      if (isNarrow) {
        for (const slope of [-size, size]) {
          u.ctx.moveTo(left - size, bottom - slope);
          u.ctx.lineTo(left + size, bottom + slope);
        }
      } else {
        u.ctx.font = LABEL_FONT.replace("11px", `${11 * ratio}px`);
        u.ctx.textAlign = "left";
        u.ctx.fillText("NaN", left + size, top + 12 * ratio * (row + 1), right - left);
        u.ctx.rect(left, top, right - left, height);
        u.ctx.clip();
        u.ctx.beginPath();
        u.ctx.globalAlpha = 0.35;
        for (let x = left - height; x < right; x += HATCH * ratio) {
          u.ctx.moveTo(x, top + height);
          u.ctx.lineTo(x + height, top);
        }
      }
      u.ctx.stroke();
      u.ctx.restore();
    }
  }
}

function select(u, handlers) {
  const { left, width } = u.select;
  if (width < 4) return;
  u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  handlers.onSelect(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
}

// Returns each line's value at the point nearest to a position of the axis; with smoothing also the smoothed value.
export function valuesAt(drawn, x) {
  return drawn.map(({ line, columns, smoothed }) => {
    const index = nearest(columns.x, x);
    if (index < 0) return { line };
    const [low, high] = [columns.low[index], columns.high[index]];
    return { line, x: columns.x[index], step: columns.steps[index], time: columns.times[index],
      value: columns.mean[index] ?? columns.raw[index],
      low, high, smoothed: smoothed?.[index] };
  });
}

// Returns the width in pixels that the labels need beside the plot.
function endLabelWidth({ drawn }) {
  return Math.ceil(Math.max(10, ...labels(drawn).map(({ text }) => textWidth(text, LABEL_FONT))) + 2 * GAP);
}

// Each line's last value within the window { text, index, value }.
function labels(drawn, to = Infinity) {
  const shown = drawn.filter(({ columns }) => columns.mean.some((value) => value !== null));
  if (shown.length > MOST_LINES || shown.length < 2 || !shown.every(isLeft)) return [];
  return shown.flatMap(({ line, columns, smoothed }) => {
    const values = smoothed ?? columns.stack ?? columns.mean;
    const last = values.findLastIndex((value, index) => value !== null && columns.x[index] <= to);
    if (last < 0) return [];
    return [{ text: shortened(line.label), index: line.index, value: values[last] }];
  });
}

function shortened(label) {
  return label.length > MOST_CHARACTERS
    ? `${label.slice(0, MOST_CHARACTERS - END_CHARACTERS - 1)}…${label.slice(-END_CHARACTERS)}` : label;
}

// Draws the labels beside the plot, one below the other where lines end close together.
function drawEndLabels(u, { drawn, window }) {
  const ratio = devicePixelRatio;
  const [top, bottom] = [u.bbox.top, u.bbox.top + u.bbox.height];
  const items = labels(drawn, window()[1])
    .map((item) => ({ ...item, y: Math.min(bottom, Math.max(top, u.valToPos(item.value, "y", true))) }));
  items.sort((a, b) => a.y - b.y);
  items.forEach((item, index) => {
    if (index) item.y = Math.max(item.y, items[index - 1].y + LINE_HEIGHT * ratio);
  });
  // Back up from the lower edge, so that no label stands below the plot.
  for (let index = items.length - 1, limit = bottom; index >= 0; index -= 1) {
    items[index].y = Math.min(items[index].y, limit);
    limit = items[index].y - LINE_HEIGHT * ratio;
  }
  u.ctx.save();
  u.ctx.font = LABEL_FONT.replace("11px", `${11 * ratio}px`);
  u.ctx.textBaseline = "middle";
  u.ctx.textAlign = "left";
  for (const { text, index, y } of items) {
    u.ctx.fillStyle = seriesColor(index);
    u.ctx.fillText(text, u.bbox.left + u.bbox.width + GAP * ratio, y);
  }
  u.ctx.restore();
}
