// Smoothing over steps: its result is the same at every zoom and width, since spans are steps and not pixels. What it
// is set to is kept in the address.

import { oneOf } from "/static/address.js";
import { h, setText, choices } from "/static/dom.js";
import { short } from "/static/format.js";

const MOST_NEIGHBORS = 32; // Points on each side that a Gaussian reads; of more, every second, third, ….

export const KINDS = { ema: "EMA", time: "Time-weighted EMA", gaussian: "Gaussian", average: "Running average" };

// Returns the smoothed values of columns { mean, steps }; null stays null. `kind` is one of KINDS, and `span` a number
// of steps: the time constant of an EMA, two standard deviations of a Gaussian, or the width of an average.
export function smooth({ mean, steps }, { kind, span }) {
  const present = mean.flatMap((value, index) => (value === null ? [] : [index]));
  const points = present.map((index) => [steps[index], mean[index]]);
  const values = { ema: exponential(even), time: exponential(apart), gaussian, average }[kind](points, span);
  const result = new Array(mean.length).fill(null);
  present.forEach((index, place) => {
    result[index] = values[place];
  });
  return result;
}

// Steps that a point stands for: the same for all, as if they were evenly spaced; or those since the point before.
const even = (points) => {
  const each = (points.at(-1)?.[0] - points[0]?.[0]) / Math.max(1, points.length - 1) || 1;
  return () => Math.abs(each);
};
const apart = (points) => (index) => (index ? Math.abs(points[index][0] - points[index - 1][0]) : 0);

// The average starts at the first value instead of 0.
function exponential(distance) {
  return (points, span) => {
    const stepsOf = distance(points);
    let sum = 0;
    let weight = 0;
    return points.map(([, value], index) => {
      const keep = index ? Math.exp(-stepsOf(index) / span) : 0;
      sum = keep * sum + (1 - keep) * value;
      weight = keep * weight + (1 - keep);
      return sum / weight;
    });
  };
}

function gaussian(points, span) {
  const deviation = span / 2;
  return windows(points, 1.5 * span, (first, last, index) => {
    const stride = Math.ceil(Math.max(index - first, last - index) / MOST_NEIGHBORS) || 1;
    let sum = 0;
    let weight = 0;
    for (let at = index - Math.floor((index - first) / stride) * stride; at <= last; at += stride) {
      const near = Math.exp(-(((points[at][0] - points[index][0]) / deviation) ** 2) / 2);
      sum += near * points[at][1];
      weight += near;
    }
    return sum / weight;
  });
}

function average(points, span) {
  const sums = [0];
  for (const [, value] of points) sums.push(sums.at(-1) + value);
  return windows(points, span / 2, (first, last) => (sums[last + 1] - sums[first]) / (last + 1 - first));
}

// Calls `value(first, last, index)` with the indexes of the points at most `reach` steps from each point.
function windows(points, reach, value) {
  let [first, last] = [0, 0];
  return points.map(([step], index) => {
    while (points[first][0] < step - reach) first += 1;
    last = Math.max(last, index);
    while (last + 1 < points.length && points[last + 1][0] <= step + reach) last += 1;
    return value(first, last, index);
  });
}

// Returns the points of a line with those around its window, which smoothing needs at the window's edges.
export function withSurroundings(points, around, axis) {
  if (!points.length || !around.length) return [around, points, []];
  const [first, last] = [points[0][axis], points.at(-1)[axis]];
  return [around.filter((point) => point[axis] < first), points, around.filter((point) => point[axis] > last)];
}

const LEAST_SPAN = 10; // The longest span of a run with few steps.
const SHARE = 0.25; // The longest span as a share of the steps.

// Returns the smoothing that an address has: { kind, span }, or undefined. Spans below 1 are earlier versions' weights.
export function readSmoothing(params) {
  const stated = Number.parseFloat(params.get("smooth"));
  if (!(stated > 0)) return undefined;
  const span = stated < 1 ? 1 / (1 - Math.min(stated, 0.999)) : stated;
  return { kind: oneOf(KINDS, params.get("smoothing"), "ema"), span };
}

export function smoothingQuery(smooth) {
  return { smooth: smooth ? smooth.span : "", smoothing: smooth && smooth.kind !== "ema" ? smooth.kind : "" };
}

// Returns the control, a slider of the span: { root, update(steps) }, where `steps` is the length of the longest run.
export function smoothingControl(initial, onChange) {
  let longest = LEAST_SPAN;
  let span = initial?.span ?? 0;
  let frame;
  const text = h("output.run-value");
  const kinds = choices(KINDS, initial?.kind);
  const kind = h("select", { "aria-label": "Kind of smoothing", onchange: () => send() }, kinds);
  const slider = h("input", { type: "range", min: 0, max: 100, step: 1, value: 0, oninput: () => moved() });

  function send() {
    frame = undefined;
    onChange(span ? { kind: kind.value, span } : undefined);
  }

  function moved() {
    span = slider.valueAsNumber ? Number((longest ** (slider.valueAsNumber / 100)).toPrecision(2)) : 0;
    show();
    frame ??= requestAnimationFrame(send);
  }

  function show() {
    setText(text, span ? `${short(span)} steps` : "off");
    kind.hidden = !span;
    slider.setAttribute("aria-valuetext", text.textContent);
  }

  function update(steps) {
    longest = Math.max(LEAST_SPAN, SHARE * (steps || 0), span);
    if (document.activeElement !== slider)
      slider.value = span ? Math.max(1, (100 * Math.log(span)) / Math.log(longest)) : 0;
  }

  show();
  update(0);
  return { root: h("span.smoothing", {}, h("label", {}, "Smoothing", slider, text), kind), update };
}
