import assert from "node:assert/strict";
import test from "node:test";

import { calculated, joinTables, markPosition, nearest, nonfiniteSpans, pointsByTime, robustExtent, toColumns,
  turningPoint,
  withDetails } from   "/static/charts/lines.js";
import { legendRows } from "/static/charts/image.js";
import { smooth } from "/static/charts/smoothing.js";
import { tickTexts } from "/static/charts/ticks.js";

const columns = (points) => toColumns(points, "step", false);

test("tables join on one axis, and what a line lacks there is undefined", () => {
  const joined = joinTables([[[1, 3], [10, null]], [[2, 3], [20, 30]]]);
  const whole = joined.map((column) => [...column]);
  assert.deepEqual(whole, [[1, 2, 3], [10, undefined, null], [undefined, 20, 30]]);
});

test("points become columns, and those at one place are merged", () => {
  const points = [[2, 12, 1, 3, 2], [1, 11, "nan", "nan", "nan"], [2, 12.5, 0, 2, "inf"]];
  assert.deepEqual(columns(points), {
    x: [1, 2], mean: [null, null], low: [null, 0], high: [null, 3], nonfinite: [1, 2], raw: ["nan", "inf"],
    steps: [1, 2], times: [11, 12],
  });
  assert.deepEqual(columns([[1, 0, 1, 9, 2, 0, 5]]).mean, [5]);
});

test("a log scale has no place for what is not positive", () => {
  assert.deepEqual(toColumns([[1, 1, -1], [2, 2, 5]], "step", true).mean, [null, 5]);
});

test("the number of NaN of a point is kept beside its last value", () => {
  const points = withDetails({ points: [[1, 11, 0, 2, 1], [2, 12, 0, 2, 1]], nonfinite: [0, 3] });
  assert.deepEqual([columns(points).nonfinite, columns(points).raw], [[2], [1, 1]]);
  assert.deepEqual(withDetails({ points: [[1, 11, 1]] }), [[1, 11, 1]]);
});

test("the nearest point is found", () => {
  assert.deepEqual([0, 2.4, 2.6, 9].map((x) => nearest([1, 2, 3], x)), [0, 1, 2, 2]);
  assert.equal(nearest([], 1), -1);
});

test("a mark without a step stands between its neighbors in time", () => {
  const clock = pointsByTime([{ points: [[10, 100], [20, 200]] }]);
  assert.equal(markPosition({ time: 150 }, "step", clock), 15);
  assert.equal(markPosition({ time: 150, step: 3 }, "step", clock), 3);
  assert.equal(markPosition({ time: 150, step: 3 }, "time", clock), 150);
  assert.deepEqual([39, 41, 261].map((time) => markPosition({ time }, "step", clock)), [undefined, 10, undefined]);
});

test("the range without outliers is that of the others", () => {
  const spike = Array.from({ length: 1000 }, (_, index) => [index, 0, index === 500 ? 1e6 : index % 10]);
  assert.ok(robustExtent([columns(spike)], 0, 999)[1] < 20);
});

test("one line that diverges does not flatten the others, and of two none is an outlier", () => {
  const line = (last) => columns([[0, 0, 1], [1, 0, 2], [2, 0, last]]);
  const many = [...Array.from({ length: 11 }, () => line(3)), line(1000)];
  assert.deepEqual(robustExtent(many, 0, 2), [1, 3]);
  assert.deepEqual(robustExtent(many.slice(-2), 0, 2), [1, 1000]);
});

test("an evaluation that gets worse has a turning point, and one that only swings has none", () => {
  const line = (values) => columns(values.map((value, step) => [step, 0, value]));
  assert.equal(turningPoint(line([3, 1, 0.5, 1, 1.5]), "less"), 2);
  assert.equal(turningPoint(line([3, 1, 0.5, 0.52, 0.51]), "less"), undefined);
  assert.equal(turningPoint(line([0, 0.9, 0.5, "nan"]), "more"), 1);
  assert.equal(turningPoint(line(Array.from({ length: 400 }, (_, step) => (37 * step) % 101)), "less"), undefined);
});

test("points that are NaN one after the other are one span", () => {
  const points = columns(["nan", 1, "nan", "inf", "nan", 2].map((value, step) => [step, 0, value]));
  assert.deepEqual(nonfiniteSpans(points), [[0, 0], [2, 4]]);
});

for (const kind of ["ema", "time", "gaussian", "average"]) {
  test(`smoothing by ${kind} is the same at every zoom`, () => {
    const at = (pace) => {
      const places = Array.from({ length: 1000 / pace }, (_, index) => index * pace);
      const points = columns(places.map((x) => [x, 0, Math.floor(x / 500)]));
      return smooth(points, { kind, span: 100 })[points.x.indexOf(600)];
    };
    assert.ok(Math.abs(at(1) - at(10)) < 0.06);
    assert.ok(at(1) > 0.6 && at(1) <= 1);
  });
}

test("a constant stays the same when it is smoothed", () => {
  const smoothed = smooth(columns([[0, 0, 4], [1, 0, 4], [9, 0, 4]]), { kind: "ema", span: 50 });
  smoothed.forEach((value) => assert.ok(Math.abs(value - 4) < 1e-9));
});

test("ticks have as many digits as tell them apart", () => {
  assert.deepEqual(tickTexts([0.0008, 0.001, 0.0012]), ["0.0008", "0.0010", "0.0012"]);
  assert.deepEqual(tickTexts([0, 5000, 10000]), ["0", "5k", "10k"]);
  assert.deepEqual(tickTexts([1e-7, 1e-6], true), ["10⁻⁷", "10⁻⁶"]);
  assert.deepEqual(tickTexts([0.01, 1, 100], true), ["0.01", "1", "100"]);
});

test("the names of the lines in an image fill a row before the next one begins", () => {
  const context = { measureText: () => ({ width: 60 }) };
  const drawn = ["a", "b", "c"].map((label, index) => ({ line: { label, index }, columns: { raw: [1] } }));
  const rows = legendRows(context, { drawn }, { text: ({ line }) => line.label }, 230);
  assert.deepEqual(rows.map(({ x, row }) => [x, row]), [[12, 0], [112, 0], [12, 1]]);
});

test("a formula of two keys has the places of the one with fewer points, and a division by zero is no number", () => {
  const points = (pairs) => pairs.map(([step, value]) => [step, 10 * step, value, value, value]);
  const [loss, evaluation] = [points([[1, 4], [2, 3], [3, 0]]), points([[1, 5], [3, 6]])];
  assert.deepEqual(calculated(evaluation, loss, "-", 0).map((point) => [point[0], point[4]]), [[1, 1], [3, 6]]);
  assert.deepEqual(calculated(loss, evaluation, "/", 0).map((point) => point[6]), [0.8, 0]);
  assert.deepEqual(calculated(evaluation, loss, "/", 0).map((point) => point[6]), [1.25, Infinity]);
  assert.deepEqual(calculated(loss, [], "-", 0), []);
});
