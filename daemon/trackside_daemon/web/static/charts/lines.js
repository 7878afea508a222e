// Calculations on lines: points of the API as columns, joined on one axis, smoothed, and searched.

import { real } from "/static/format.js";

// Returns the points of a series, each followed by its number of NaN or infinite samples, and by its mean.
export function withDetails({ points, nonfinite, means }) {
  if (!nonfinite && !means) return points;
  return points.map((point, index) => [...point, nonfinite?.[index] ?? 0, means?.[index] ?? point[4]]);
}

// Turns points [step, time, min, max, last, nonfinite, mean] or [step, time, value] into columns sorted by the axis;
// points at the same position are merged. Values that cannot be drawn are null. `mean` is what a line shows,
// `nonfinite` lists the positions of NaN and infinities, `raw` the last values as received.
export function toColumns(points, by, log) {
  const axis = isTime(by) ? 1 : 0;
  /** @type {Columns} */
  const result = { x: [], mean: [], low: [], high: [], nonfinite: [], raw: [], steps: [], times: [] };
  for (const point of sortedPoints(points, axis)) addPoint(result, point, axis, log);
  return result;
}

// Puts lines on top of each other, the first one on top: each gets a column `stack` with its sum with those below it.
export function stack(drawn) {
  const sums = new Map();
  for (const { columns } of [...drawn].reverse()) {
    columns.stack = columns.x.map((x, index) => {
      sums.set(x, (sums.get(x) ?? 0) + (columns.mean[index] ?? 0));
      return sums.get(x);
    });
    [columns.low, columns.high] = [columns.stack.map(() => 0), columns.stack];
  }
}

export const isTime = (by) => by === "time" || by === "relative";

function sortedPoints(points, axis) {
  const falls = points.some((point, index) => index && point[axis] < points[index - 1][axis]);
  return falls ? [...points].sort((a, b) => a[axis] - b[axis]) : points;
}

function addPoint(result, point, axis, log) {
  const values = (point.length > 3 ? point.slice(2, 5) : [point[2], point[2], point[2]]).map(real);
  const drawable = (value) => (Number.isFinite(value) && (!log || value > 0) ? value : null);
  const mean = drawable(real(point[6]) ?? values[2]);
  const [low, high] = values.slice(0, 2).map((value) => drawable(value) ?? mean);
  const x = point[axis];
  const end = result.x.length - 1;
  if ((point[5] || values.some((value) => !Number.isFinite(value))) && result.nonfinite.at(-1) !== x)
    result.nonfinite.push(x);
  if (end >= 0 && result.x[end] === x) {
    result.mean[end] = mean;
    result.raw[end] = point[4] ?? point[2];
    result.low[end] = combine(Math.min, result.low[end], low);
    result.high[end] = combine(Math.max, result.high[end], high);
    return;
  }
  result.x.push(x);
  result.mean.push(mean);
  result.raw.push(point[4] ?? point[2]);
  result.low.push(low);
  result.high.push(high);
  result.times.push(point[1]);
  result.steps.push(point[7] ?? point[0]); // An axis of tokens or of a key replaces the steps, and appends them.
}

function combine(choose, a, b) {
  if (a === null) return b;
  return b === null ? a : choose(a, b);
}

// Joins tables [xs, values, …] on one axis: [xs, values of the first, …]. Across a missing value, undefined,
// uPlot draws a line; null would be a gap.
export function joinTables(tables) {
  if (tables.length === 1) return tables[0];
  const xs = [...new Set(tables.flatMap(([xsOfTable]) => xsOfTable))].sort((a, b) => a - b);
  const indexes = new Map(xs.map((x, index) => [x, index]));
  const result = [xs];
  for (const [xsOfTable, ...rest] of tables) {
    for (const values of rest) {
      const column = new Array(xs.length);
      values.forEach((value, index) => {
        column[indexes.get(xsOfTable[index])] = value;
      });
      result.push(column);
    }
  }
  return result;
}

// Returns the index of the number nearest to x in ascending numbers; -1 if there are none.
export function nearest(xs, x) {
  const high = Math.min(xs.length - 1, firstIndexSince(xs, x));
  return high < 1 || Math.abs(xs[high] - x) <= Math.abs(xs[high - 1] - x) ? high : high - 1;
}

// Returns the range of the drawn values between two positions of the axis without the most extreme ones, and of three
// lines or more without those that leave the others far behind. Undefined if there is none.
export function robustExtent(all, from, to) {
  const ends = all.map((item) => robustEnds(item, from, to)).filter(Boolean);
  if (!ends.length) return undefined;
  const [lows, highs] = [0, 1].map((end) => ends.map((item) => item[end]).sort((a, b) => a - b));
  if (ends.length < 3) return [lows[0], highs.at(-1)];
  const [low, high] = [lows[Math.ceil((lows.length - 1) / 4)], highs[Math.floor(((highs.length - 1) * 3) / 4)]];
  const reach = 3 * Math.abs(high - low);
  return [lows.find((value) => value >= low - reach), highs.findLast((value) => value <= high + reach)];
}

// The range of one line without its lowest and highest 1 %, if they are far from the others.
function robustEnds(item, from, to) {
  const values = item.mean.filter((value, index) =>
    value !== null && item.x[index] >= from && item.x[index] <= to).sort((a, b) => a - b);
  if (!values.length) return undefined;
  const [low, high] = [0.01, 0.99].map((share) => values[Math.round(share * (values.length - 1))]);
  const margin = (high - low) / 4;
  return [Math.max(values[0], low - margin), Math.min(values.at(-1), high + margin)];
}

// Returns the spans [first, last] of the axis in which every point of the columns is NaN or infinite.
export function nonfiniteSpans({ x, nonfinite }) {
  const bad = new Set(nonfinite);
  const spans = [];
  x.forEach((place, index) => {
    if (!bad.has(place)) return;
    if (index && bad.has(x[index - 1])) spans.at(-1)[1] = place;
    else spans.push([place, place]);
  });
  return spans;
}

const LEAST_TURN = 0.1; // Of the range of the values.
const TURN_WINDOW = 0.1; // Of the values, whose means are compared: noise is no turn.

// Returns the index of the best value of a line that has turned away from it since; undefined if it has not.
export function turningPoint({ mean }, better) {
  const sign = better === "less" ? 1 : -1;
  const known = mean.flatMap((value, index) => (value === null ? [] : [{ index, value: sign * value }]));
  const best = known.reduce((least, item, at) => (item.value < known[least].value ? at : least), 0);
  const reach = Math.floor((TURN_WINDOW * known.length) / 2);
  const average = (from, to) => known.slice(Math.max(0, from), to).reduce((sum, { value }, _, all) =>
    sum + value / all.length, 0);
  const range = known.reduce((most, { value }) => Math.max(most, value), -Infinity) - known[best]?.value;
  const rise = average(known.length - 1 - 2 * reach, known.length) - average(best - reach, best + reach + 1);
  return rise > LEAST_TURN * range && known[best].index < mean.length - 2 ? known[best].index : undefined;
}

const OPERATORS = { "-": (a, b) => a - b, "/": (a, b) => a / b };

// Returns the difference or the ratio of two lists of points, at the places of the one that has fewer; `axis` as above.
export function calculated(first, second, operator, axis) {
  const isFirst = first.length <= second.length;
  const [fewer, more] = isFirst ? [first, second] : [second, first];
  const places = more.map((point) => point[axis]);
  return !more.length ? [] : fewer.map((point) => {
    const pair = [point, more[nearest(places, point[axis])]].map((item) => real(item[6] ?? item[4]));
    const value = OPERATORS[operator](...(isFirst ? pair : pair.reverse()));
    return [point[0], point[1], value, value, value, 0, value, ...point.slice(7)];
  });
}

// Returns the lowest and highest drawn value between two positions of the axis; undefined if there is none.
export function extent(all, from, to) {
  let low = Infinity;
  let high = -Infinity;
  for (const item of all) {
    item.x.forEach((x, index) => {
      if (x < from || x > to || item.low[index] === null) return;
      low = Math.min(low, item.low[index]);
      high = Math.max(high, item.high[index]);
    });
  }
  return low <= high ? [low, high] : undefined;
}

// Returns the points of all lines sorted by time, to find the step at a given time.
export function pointsByTime(lines) {
  return lines.flatMap((line) => line.points).sort((a, b) => a[1] - b[1]);
}

// Returns the position of a mark on the axis; undefined if it is long before or after all points. A mark without a step
// is placed between its neighbors in time; `points` are sorted by time.
export function markPosition({ step, time }, by, points) {
  if (isTime(by)) return time;
  if (by === "step" && Number.isFinite(step)) return step;
  const next = firstIndexSince(points, time, (point) => point[1]);
  const neighbour = points[next] ?? points.at(-1);
  if (!neighbour) return undefined;
  if (next === 0 || next === points.length) return Math.abs(neighbour[1] - time) < 60 ? neighbour[0] : undefined;
  const before = points[next - 1];
  const part = (time - before[1]) / Math.max(1e-9, neighbour[1] - before[1]);
  return before[0] + part * (neighbour[0] - before[0]);
}

// Returns the index of the first item whose value is not less than one; the number of items if there is none.
export function firstIndexSince(items, value, valueOf = (item) => item) {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (valueOf(items[middle]) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
