// The mathematics of lines: points of the API as columns, joined on one axis, smoothed, and what of them is near.

import { real } from "/static/words.js";

// The points of a series of the API, behind each how many of its samples are NaN or infinite, where there are any.
export function counted({ points, nonfinite }) {
  return nonfinite ? points.map((point, place) => [...point, nonfinite[place]]) : points;
}

// Points [step, time, min, max, last, not finite], or [step, time, value], as columns in the order of the axis; several at
// one place are one. What cannot be drawn is null; `odd` are the places of NaN and infinities, `told` the last values as they came.
export function columns(points, by, log) {
  const axis = by === "step" ? 0 : 1;
  const found = { x: [], last: [], low: [], high: [], odd: [], told: [] };
  for (const point of inOrder(points, axis)) add(found, point, axis, log);
  return found;
}

function inOrder(points, axis) {
  const falls = points.some((point, place) => place && point[axis] < points[place - 1][axis]);
  return falls ? [...points].sort((one, other) => one[axis] - other[axis]) : points;
}

function add(found, point, axis, log) {
  const values = (point.length > 3 ? point.slice(2, 5) : [point[2], point[2], point[2]]).map(real);
  const drawable = (value) => (Number.isFinite(value) && (!log || value > 0) ? value : null);
  const last = drawable(values[2]);
  const [low, high] = values.slice(0, 2).map((value) => drawable(value) ?? last);
  const x = point[axis];
  const end = found.x.length - 1;
  if ((point[5] || values.some((value) => !Number.isFinite(value))) && found.odd.at(-1) !== x) found.odd.push(x);
  if (end >= 0 && found.x[end] === x) {
    found.last[end] = last;
    found.told[end] = point[4] ?? point[2];
    found.low[end] = chosen(Math.min, found.low[end], low);
    found.high[end] = chosen(Math.max, found.high[end], high);
    return;
  }
  found.x.push(x);
  found.last.push(last);
  found.told.push(point[4] ?? point[2]);
  found.low.push(low);
  found.high.push(high);
}

function chosen(choose, one, other) {
  if (one === null) return other;
  return other === null ? one : choose(one, other);
}

// An exponential moving average that begins at the first value, not at 0; what is null stays so.
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

// Tables [xs, values, …] on one axis: [xs, values of the first, …]. Where a table has nothing it is undefined, over which
// uPlot draws a line, and not null, which is a gap.
export function joined(tables) {
  if (tables.length === 1) return tables[0];
  const xs = [...new Set(tables.flatMap(([own]) => own))].sort((one, other) => one - other);
  const places = new Map(xs.map((x, place) => [x, place]));
  const found = [xs];
  for (const [own, ...rest] of tables) {
    for (const values of rest) {
      const column = new Array(xs.length);
      values.forEach((value, place) => {
        column[places.get(own[place])] = value;
      });
      found.push(column);
    }
  }
  return found;
}

// The place of the number next to x in numbers that rise; -1 where there are none.
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

// The lowest and highest of what is drawn between two places of the axis; undefined where nothing is.
export function extent(all, from, to) {
  let low = Infinity;
  let high = -Infinity;
  for (const one of all) {
    one.x.forEach((x, place) => {
      if (x < from || x > to || one.low[place] === null) return;
      low = Math.min(low, one.low[place]);
      high = Math.max(high, one.high[place]);
    });
  }
  return low <= high ? [low, high] : undefined;
}

// Points of all lines in the order of time: what tells at which step a moment was.
export function clock(lines) {
  return lines.flatMap((line) => line.points).sort((one, other) => one[1] - other[1]);
}

// Where a mark lies on the axis; undefined for one long before or after all points. One without a step lies between
// those of the points next to it, which are in the order of time.
export function placeOf({ step, time }, by, points) {
  if (by === "time") return time;
  if (Number.isFinite(step)) return step;
  const next = firstSince(points, time);
  const near = points[next] ?? points.at(-1);
  if (!near) return undefined;
  if (next === 0 || next === points.length) return Math.abs(near[1] - time) < 60 ? near[0] : undefined;
  const before = points[next - 1];
  const part = (time - before[1]) / Math.max(1e-9, near[1] - before[1]);
  return before[0] + part * (near[0] - before[0]);
}

// The number of the first point that is not before a time; that of points where all are.
function firstSince(points, time) {
  let low = 0;
  let high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][1] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}
