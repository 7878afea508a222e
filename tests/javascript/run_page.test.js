import assert from "node:assert/strict";
import test from "node:test";

import { matchesSilence } from "/static/alerts/format.js";
import { readSmoothing, smoothingQuery } from "/static/charts/smoothing.js";
import { sections } from "/static/run/charts.js";
import { isLoss, ranges, twins } from "/static/run/keys.js";
import { HOST_CHARTS, gpuLines, hottest } from "/static/machine/over_time.js";
import { chartMarks } from "/static/run/marks.js";
import { phaseTotals as totals } from "/static/run/tables.js";
import { Workspace } from "/static/run/workspace.js";
import { axisOf } from "/static/run/x_axis.js";
import { grouped, stackText } from "/static/stacks.js";

test("an evaluation is joined to what was trained, and each once", () => {
  const keys = ["loss", "train/loss", "eval/loss", "val/loss", "acc", "eval_acc", "eval/bleu", "test"];
  assert.deepEqual([...twins(keys)], [["train/loss", "eval/loss"], ["acc", "eval_acc"]]);
  assert.deepEqual([...twins(["loss", "val/loss"])], [["loss", "val/loss"]]);
});

test("the time of a phase is summed over the ranks, whatever its name", () => {
  assert.deepEqual(totals([{ phases: { 0: { constructor: 2 }, 1: { constructor: 3 } } }]), [["constructor", 5]]);
});

test("equal stacks are together, those in the user's code first", () => {
  const library = ["/x/site-packages/torch/d.py:7 all_reduce"];
  const thread = (name, frames) => ({ name, frames });
  const groups = grouped([
    { rank: 0, threads: [thread("feeder", library), thread("MainThread", ["/me/train.py:9 main", ...library])] },
    { rank: 1, threads: [thread("MainThread", ["/me/train.py:9 main", ...library])] },
    { rank: 2, threads: [thread("pt_data_worker 7", ["/me/data.py:88 __getitem__"])] },
  ]);
  assert.deepEqual(groups.map(({ title }) => title),
    ["ranks 0–1, MainThread", "rank 2, pt_data_worker 7", "rank 0, feeder"]);
  assert.equal(stackText(groups.slice(1, 2)), "rank 2, pt_data_worker 7:\n  /me/data.py:88 __getitem__");
});

test("GPUs of one number are told apart by their identifier", () => {
  const series = [["0", "a", 1], ["0", "b", 1], ["1", "c", 1], ["2", "d", 0]].map(([gpu, uuid, count]) =>
    ({ key: `gpu{gpu="${gpu}",uuid="${uuid}"}`, points: Array(count).fill([0, 1, 2]) }));
  assert.deepEqual(gpuLines(series).map((line) => line.label), ["GPU 0, a", "GPU 0, b", "GPU 1"]);
});

test("the share of busy CPUs comes from the rates of seconds by mode", () => {
  const rates = Object.entries({ user: [6, 3], idle: [4, 7] }).map(([mode, values]) => ({
    key: `trackside_host_cpu_seconds_total{mode="${mode}"}`,
    points: values.map((value, time) => [0, time, value, value, value, 0, value]),
  }));
  const [line] = HOST_CHARTS[0].lines(rates);
  assert.deepEqual(line.points.map((point) => point[4].toFixed(6)), ["0.600000", "0.300000"]);
});

test("the hottest GPU is named with its time and the runs of that time", () => {
  const lines = [["GPU 0", 71], ["GPU 1", 84]].map(([label, heat]) => ({ label, points: [[0, 50, 60, heat, 65]] }));
  const runs = [{ text: "llama", time: 40, until: 60 }, { text: "bert", time: 51, until: 60 }];
  assert.match(hottest(lines, runs), /^Hottest: GPU 1, 84 °C, .*, llama$/);
  assert.equal(hottest([], runs), "");
});

test("keys with a common first part are a section, in which losses come first", () => {
  assert.deepEqual(sections(["lr", "eval/f1", "eval/loss", "train/mfu", "loss", "tokens"]),
    [["", ["loss", "lr", "train/mfu", "tokens"]], ["eval", ["eval/loss", "eval/f1"]]]);
  assert.deepEqual(sections(["lr", "train/f1", "train/loss"]), [["train", ["train/loss", "train/f1"]], ["", ["lr"]]]);
});

test("a loss is known by its name", () => {
  assert.deepEqual(["loss", "a/loss", "a_loss", "loss/a", "glossy", "losses", "a.loss"].map(isLoss),
    [true, true, true, true, false, false, false]);
});

test("ranks in a row are written as a range", () => {
  assert.equal(ranges([5, 0, 1, 2, 1]), "0–2, 5");
});

test("an event of all ranks is one mark, and an alert of the script is not marked twice", () => {
  const event = { kind: "checkpoint", attempt: 0, step: 3, fields: { path: "/c" } };
  const events = [{ ...event, rank: 0, time: 12 }, { ...event, rank: 1, time: 11 }, { ...event, kind: "user_alert" }];
  const alerts = [{ alert: "LossSpike", severity: "warning", summary: "it rose", started: 9, ended: 10 }];
  assert.deepEqual(chartMarks(events, alerts).map(({ kind, time, text }) => [kind, time, text]), [
    ["checkpoint", 11, "checkpoint of ranks 0–1, step 3: path /c"],
    ["alert", 9, "LossSpike, warning, fired for 1 s: it rose"],
  ]);
});

test("the patterns of a silence are those of the daemon", () => {
  const alert = { alert: "LossSpike", labels: { run: "a.b", rank: "0" } };
  const matching = [{}, { alert: "Loss*" }, { run: "a.b" }, { rank: "?" }];
  const other = [{ alert: "loss*" }, { run: "aXb" }, { key: "*" }, { rank: "??" }];
  assert.deepEqual(matching.map((labels) => matchesSilence(labels, alert)), [true, true, true, true]);
  assert.deepEqual(other.map((labels) => matchesSilence(labels, alert)), [false, false, false, false]);
});

test("the smoothing of an address is read as it is written", () => {
  const read = (text) => readSmoothing(new URLSearchParams(text));
  assert.deepEqual(read("smooth=50&smoothing=average"), { kind: "average", span: 50 });
  assert.deepEqual(read("smooth=0.9&smoothing=constructor"), { kind: "ema", span: 10.000000000000002 });
  assert.equal(read("smooth=-1"), undefined);
  assert.deepEqual(smoothingQuery({ kind: "average", span: 50 }), { smooth: 50, smoothing: "average" });
  assert.deepEqual(smoothingQuery(undefined), { smooth: "", smoothing: "" });
});

test("an axis that there is none of becomes that of steps", () => {
  const axes = [undefined, "relative", "key:lr", "constructor"].map(axisOf);
  assert.deepEqual(axes, ["step", "relative", "key:lr", "step"]);
});

test("the arrangement of charts travels in an address, and a wrong one costs only itself", () => {
  const stored = new Map();
  globalThis.localStorage = /** @type {any} */ ({
    getItem: (name) => stored.get(name) ?? null, setItem: (name, text) => stored.set(name, text),
  });
  const first = new Workspace("r", null, () => {});
  first.set({ pinned: ["loss"] });
  first.move("lr", "loss", ["loss", "lr", "tokens"], false);
  const text = first.encode();
  stored.clear();
  const shared = new Workspace("r", text, () => {});
  assert.deepEqual([shared.pinned, shared.sort(["loss", "lr", "new"])], [["loss"], ["lr", "loss", "new"]]);
  for (const wrong of ["%%%", text.slice(0, 9), btoa('{"pinned": 1, "columns": 99, "own": {"a": {"log": "yes"}}}')]) {
    const { pinned, columns, order } = new Workspace("r", wrong, () => {});
    assert.deepEqual([pinned, columns, order], [[], 0, []]);
  }
});
