// Calculations on lines: points of the API as columns, joined on one axis, smoothed, and searched.

import { real } from "/static/format.js";

// Returns the points of a series, each followed by its number of NaN or infinite samples if the series has any.
export function withNonfinite({ points, nonfinite }) {
  return nonfinite ? points.map((point, index) => [...point, nonfinite[index]]) : points;
}

// Turns points [step, time, min, max, last, nonfinite] or [step, time, value] into columns sorted by the axis; points at the
// same position are merged. Values that cannot be drawn are null. `nonfinite` lists the positions of NaN and infinities,
// and `raw` the last values as received.
export function toColumns(points, by, log) {
  const axis = by === "step" ? 0 : 1;
  const result = { x: [], last: [], low: [], high: [], nonfinite: [], raw: [] };
  for (const point of sortedPoints(points, axis)) addPoint(result, point, axis, log);
  return result;
}

function sortedPoints(points, axis) {
  const falls = points.some((point, index) => index && point[axis] < points[index - 1][axis]);
  return falls ? [...points].sort((a, b) => a[axis] - b[axis]) : points;
}

function addPoint(result, point, axis, log) {
  const values = (point.length > 3 ? point.slice(2, 5) : [point[2], point[2], point[2]]).map(real);
  const drawable = (value) => (Number.isFinite(value) && (!log || value > 0) ? value : null);
  const last = drawable(values[2]);
  const [low, high] = values.slice(0, 2).map((value) => drawable(value) ?? last);
  const x = point[axis];
  const end = result.x.length - 1;
  if ((point[5] || values.some((value) => !Number.isFinite(value))) && result.nonfinite.at(-1) !== x) result.nonfinite.push(x);
  if (end >= 0 && result.x[end] === x) {
    result.last[end] = last;
    result.raw[end] = point[4] ?? point[2];
    result.low[end] = combine(Math.min, result.low[end], low);
    result.high[end] = combine(Math.max, result.high[end], high);
    return;
  }
  result.x.push(x);
  result.last.push(last);
  result.raw.push(point[4] ?? point[2]);
  result.low.push(low);
  result.high.push(high);
}

function combine(choose, a, b) {
  if (a === null) return b;
  return b === null ? a : choose(a, b);
}

// Returns an exponential moving average that starts at the first value instead of 0; null stays null.
export function smoothed(values, weight) {
  let sum = 0;
  let count = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    count += 1;
    return sum / (1 - weight ** count);
  });
}

// Joins tables [xs, values, …] on one axis: [xs, values of the first, …]. A missing value is undefined, across which uPlot
// draws a line; null would be a gap.
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
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle;
    else high = middle;
  }
  return high > low && Math.abs(xs[high] - x) <= Math.abs(xs[low] - x) ? high : high < 0 ? -1 : low;
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

// Returns the position of a mark on the axis; undefined if it is long before or after all points. A mark without a step is
// placed between its neighbors in time; `points` are sorted by time.
export function markPosition({ step, time }, by, points) {
  if (by === "time") return time;
  if (Number.isFinite(step)) return step;
  const next = firstIndexSince(points, time);
  const neighbour = points[next] ?? points.at(-1);
  if (!neighbour) return undefined;
  if (next === 0 || next === points.length) return Math.abs(neighbour[1] - time) < 60 ? neighbour[0] : undefined;
  const before = points[next - 1];
  const part = (time - before[1]) / Math.max(1e-9, neighbour[1] - before[1]);
  return before[0] + part * (neighbour[0] - before[0]);
}

// Returns the index of the first point at or after a time; the number of points if there is none.
function firstIndexSince(points, time) {
  let low = 0;
  let high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][1] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}
