import assert from "node:assert/strict";
import test from "node:test";

import { betterDirection } from "/static/compare/results.js";
import { columnOf, grouped, matcher, prepared, sorted, summarized } from "/static/runs/columns.js";

const RUNS = [[1, "b"], [undefined, "a"], [3, "b"], [2, "a"]].map(([loss, tag], index) =>
  prepared({ id: `${index}`, name: "r", label: `r-${index}`, loss, tags: [tag], config: { lr: index / 10 } }, 0));
const LOSS = columnOf("loss");
const TAGS = columnOf("tags");
const found = (pattern) => RUNS.filter(matcher(pattern, [TAGS, columnOf("config.lr")]).matches).map((run) => run.id);

test("which value of a key is better is judged as trackside compare judges it", () => {
  const keys = ["loss", "eval/accuracy", "error_score", "stepTime", "reward", "reward_std", "lr"];
  assert.deepEqual(keys.map(betterDirection), ["less", "more", "less", "less", "more", undefined, undefined]);
});

test("runs without a value come last in both orders", () => {
  assert.deepEqual([false, true].map((descending) => sorted(RUNS, LOSS, descending).map((run) => run.id).join("")),
    ["0321", "2301"]);
});

test("a group of runs has a mean and a spread", () => {
  assert.deepEqual(grouped(RUNS, TAGS).map(([label, some]) => [label, summarized(LOSS, some, true)]),
    [["b", "2 ± 1.4"], ["a", "2"]]);
});

test("a filter is a regular expression over the names, or over a column that it names", () => {
  assert.deepEqual(found("r-[12]"), ["1", "2"]);
  assert.deepEqual(found("tags:^b$"), ["0", "2"]);
  assert.deepEqual(found("lr:0.3"), ["3"]);
});

test("a filter that is no regular expression is searched as a text, and says so", () => {
  assert.deepEqual(found("("), []);
  assert.equal(matcher("(", []).isPlain, true);
  assert.equal(matcher("r", []).isPlain, false);
});
