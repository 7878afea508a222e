import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { bytes, number, ofPlanned, percent, plural, real, span, withUnit } from "/static/format.js";
import { labelled } from "/static/alerts/format.js";

// Python reads the same cases: tests/model/test_text.py.
const SPELLING = JSON.parse(readFileSync(new URL("../model/spelling.json", import.meta.url), "utf-8"));
const SPELL = {
  number, percent, bytes, duration: span,
  hertz: (value) => withUnit(value, "Hz"),
  joules: (value) => withUnit(value, "J"),
  counted: (value) => plural(value, "checkpoint"),
};

for (const [kind, cases] of Object.entries(SPELLING)) {
  test(`${kind} is spelt as Python spells it`, () => {
    for (const [value, text] of cases) assert.equal(SPELL[kind](value), text);
  });
}

test("what is unmeasured is an empty text", () => {
  assert.deepEqual([number(Infinity), number(null)], ["infinite", ""]);
});

test("NaN is a text of the API, and other texts are no numbers", () => {
  assert.ok(Number.isNaN(real("nan")));
  assert.equal(real("constructor"), undefined);
});

test("more steps than planned are more than the whole", () => {
  assert.deepEqual([ofPlanned(41802, 40000, 1), ofPlanned(10, 40, 0.25)], ["of 40,000, 104.5 %", "of 40, 25.0 %"]);
});

test("runs of one name have labels that tell their alerts apart", () => {
  const alerts = [["a1", "oom"], ["b2", "oom"], ["a1", "oom"], ["c3", "nan"], [null, null]];
  const labels = labelled(alerts.map(([run, name]) => ({ run, name })));
  assert.deepEqual(labels.map(({ label }) => label), ["oom-a1", "oom-b2", "oom-a1", "nan", undefined]);
});
