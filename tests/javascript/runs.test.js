import assert from "node:assert/strict";
import test from "node:test";

import { settingsOfAll } from "/static/compare/results.js";
import { betterDirection, keyFilter } from "/static/run/keys.js";
import { columnOf, completions, grouped, prepared, sorted, summarized } from "/static/runs/columns.js";

const RUNS = [[1, "b"], [undefined, "a"], [3, "b"], [2, "a"]].map(([loss, tag], index) =>
  prepared({ id: `${index}`, name: "r", label: `r-${index}`, loss, tags: [tag], config: { lr: index / 10 } }, 0));
const LOSS = columnOf("loss");
const TAGS = columnOf("tags");

test("which value of a key is better is judged as trackside compare judges it", () => {
  const keys = ["loss", "eval/accuracy", "error_score", "stepTime", "reward", "reward_std", "lr"];
  assert.deepEqual(keys.map(betterDirection), ["less", "more", "less", "less", "more", undefined, undefined]);
});

test("an option that one run has not set differs, and a package that is not known does not", () => {
  const run = (config, packages, command = []) => ({ attempt_list: [{ config, packages, command }] });
  const runs = [run({ lr: 1, ema: true }, { torch: "2" }, ["t", "--bs", "8"]), run({ lr: 1 }, {}, ["t", "--bs=8"]),
    run({ lr: 1 }, { torch: "2" }, ["t", "--bs", "9"])];
  const { differing, names } = settingsOfAll(runs);
  assert.deepEqual(differing, ["ema", "--bs", "Command"]);
  assert.deepEqual(names, ["lr", "ema", "--bs", "Command", "package torch"]);
});

test("runs without a value come last in both orders", () => {
  assert.deepEqual([false, true].map((descending) => sorted(RUNS, LOSS, descending).map((run) => run.id).join("")),
    ["0321", "2301"]);
});

test("a group of runs has a mean and a spread", () => {
  assert.deepEqual(grouped(RUNS, TAGS).map(([label, some]) => [label, summarized(LOSS, some, true)]),
    [["b", "2 ± 1.4"], ["a", "2"]]);
});

test("a query is completed to names, and to values after a comparison", () => {
  const facts = { tags: ["a tag"], state: "failed" };
  const runs = [prepared({ ...facts, config: { optim: { lr: 3e-4 } }, summary: { acc: 1 } }, 0)];
  assert.deepEqual(completions("finished l", runs),
    ["finished failed", "finished lost", "finished live", "finished older:7d", "finished optim.lr="]);
  assert.deepEqual(completions("lr=", runs), ["lr=0.0003"]);
  assert.deepEqual(completions("x -tag:a", runs), ['x -tag:"a tag"']);
  assert.deepEqual(completions("x ", runs), []);
});

test("keys are filtered by words, alternatives, patterns and what to leave out", () => {
  const keys = ["loss", "eval/loss", "grad_norm", "eval/Acc"];
  const found = (text) => keys.filter(keyFilter(text)).join(" ");
  assert.equal(found("loss"), "loss eval/loss");
  assert.equal(found("loss -eval"), "loss");
  assert.equal(found("loss|acc"), "loss eval/loss eval/Acc");
  assert.equal(found("grad, acc"), "");
  assert.equal(found("/^EVAL/"), "eval/loss eval/Acc");
  assert.equal(found("/[/"), keys.join(" "));
  assert.equal(found(""), keys.join(" "));
});
