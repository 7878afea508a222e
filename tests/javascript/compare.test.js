import assert from "node:assert/strict";
import test from "node:test";

import { groupLines } from "/static/compare/charts.js";

test("a line of a group has the color of the group, and counts runs, not attempts", () => {
  const points = [[1, 1, 2, 2, 2, 0, 2]];
  const run = {};
  const lines = [run, run, {}].map((item) => ({ label: "r", run: item, group: "lr 1", index: 3, points }));
  assert.deepEqual(groupLines(lines, "step").map(({ label, index }) => [label, index]), [["lr 1 (2)", 3]]);
});
