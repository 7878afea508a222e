// One chart per key with a line for each run; all charts have the same axis, window and smoothing.

import { getSeries } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { COLORS } from "/static/charts/colors.js";
import { withDetails, nearest } from "/static/charts/lines.js";
import { AxisTable, axisTitle } from "/static/run/x_axis.js";
import { h } from "/static/dom.js";

const GRID = 400; // Most points of a line of a group.

export class Charts {
  // `groupOf(run)` returns the group of a run, undefined without groups.
  constructor(/** @type {RunSelection} */ selection, groupOf, signal) {
    this.selection = selection;
    this.groupOf = groupOf;
    this.signal = signal;
    this.runs = [];
    this.charts = new Map();
    this.root = h("div.charts");
  }

  // Shows the charts of some keys in their order and removes others; if the runs changed, all charts load again.
  show(keys, runs) {
    const same = runs.length === this.runs.length && runs.every((run, index) => run === this.runs[index]);
    this.runs = [...runs];
    for (const key of [...this.charts.keys()]) if (!keys.includes(key)) this.#remove(key);
    if (!same) this.reload();
    keys.forEach((key, index) => {
      const { root } = this.charts.get(key)?.chart ?? this.#add(key);
      if (this.root.children[index] !== root) this.root.insertBefore(root, this.root.children[index] ?? null);
    });
  }

  set(changes) {
    if ("by" in changes) changes.byTitle = axisTitle(changes.by);
    for (const { chart } of this.charts.values()) chart.set(changes);
  }

  // Dims the lines of the other runs in all charts; without a run, none.
  emphasize(run) {
    const own = this.runs.find((item) => item.id === run?.id);
    for (const { chart } of this.charts.values()) chart.emphasize(own && this.#indexOf(own));
  }

  // The color of a run's line, or of its group, which is the same in all charts.
  #indexOf(run) {
    const group = this.groupOf(run);
    return group === undefined ? run.index : [...new Set(this.runs.map((item) => this.groupOf(item)))].indexOf(group);
  }

  reload() {
    for (const { chart } of this.charts.values()) chart.reload();
  }

  refresh() {
    for (const { chart } of this.charts.values()) chart.refresh();
  }

  #add(key) {
    const controller = new AbortController();
    const load = async (request) => {
      const lines = await loadLines(this.runs.filter((run) => run.summaries.has(key)), key, request);
      return lines.some(({ run }) => this.groupOf(run) !== undefined) ? groupLines(lines.map((line) =>
        ({ ...line, group: this.groupOf(line.run), index: this.#indexOf(line.run) })), request.by) : lines;
    };
    const { by, log, robust, smooth, from, to, zoom } = this.selection;
    const chart = new Chart({ title: key, sync: "compare", sharedLegend: true, load, onZoom: zoom, by,
      byTitle: axisTitle(by), log, robust, smooth, from, to }, AbortSignal.any([this.signal, controller.signal]));
    this.charts.set(key, { chart, controller });
    return chart;
  }

  #remove(key) {
    const { chart, controller } = this.charts.get(key);
    controller.abort();
    chart.root.remove();
    this.charts.delete(key);
  }
}

// Loads the lines of a key: one per run, or one per attempt in the color of its run.
async function loadLines(runs, key, request) {
  if (!["step", "time", "relative"].includes(request.by))
    return (await Promise.all(runs.map((run) => loadPlaced(run, key, request)))).flat();
  const { by, from, to, points, signal } = request;
  const start = (run) => (by === "relative" ? run.document.started : 0);
  const onZoom = from !== undefined || to !== undefined;
  const groups = by === "relative" && onZoom ? runs.map((run) => [run]) : [runs];
  const answers = groups.filter((group) => group.length).map(async (group) => {
    const [low, high] = [from, to].map((item) => (item === undefined ? undefined : item + start(group[0])));
    const wanted = { run: group.map((run) => run.id), key, by: by === "step" ? "step" : "time", from: low, to: high,
      points, mean: true };
    return getSeries(wanted, signal);
  });
  const series = (await Promise.all(answers)).flat();
  const placed = (run) => (points) => points.map(([step, time, ...rest]) => [step, time - start(run), ...rest]);
  return runs.flatMap((run) => linesOf(run, series.filter((item) => item.run === run.id), placed(run)));
}

// Loads the lines of one run by its tokens or samples so far.
async function loadPlaced(run, key, { by, from, to, points, signal }) {
  run.axis ??= new AxisTable(run.document);
  await run.axis.load(by, run.document);
  const [low, high] = from === undefined && to === undefined ? [] : run.axis.steps(from, to);
  const series = await getSeries({ run: run.id, key, from: low, to: high, points, mean: true }, signal);
  return linesOf(run, series, (points) => run.axis.place(points));
}

// Returns a line for each series of a run that has points, which `place` moves on the axis.
function linesOf(run, series, place) {
  const measured = series.filter((item) => item.points.length);
  return measured.map((item, number) => ({
    label: measured.length > 1 ? `${run.label}, attempt ${item.attempt}` : run.label,
    run,
    start: run.document.started,
    index: run.index + COLORS * number,
    points: place(withDetails(item)),
  }));
}

// Returns one line per group of lines { label, index, points, group, run }; a group of one run stays a line.
export function groupLines(lines, by) {
  const axis = by === "step" ? 0 : 1;
  const groups = new Map();
  for (const line of lines) groups.set(line.group, [...(groups.get(line.group) ?? []), line]);
  return [...groups].map(([name, members]) => {
    const count = new Set(members.map((line) => line.run)).size;
    const label = count > 1 ? `${name} (${count})` : name;
    return { label, index: members[0].index, points: merged(members.map((line) => line.points), axis) };
  });
}

// Points of several lines at the positions of the longest one; a line counts only between its ends.
function merged(all, axis) {
  const present = all.filter((points) => points.length);
  if (present.length < 2) return present[0] ?? [];
  const longest = present.reduce((most, points) => (points.length > most.length ? points : most));
  const stride = Math.ceil(longest.length / GRID);
  const columns = present.map((points) => [points.map((point) => point[axis]), points]);
  return longest.filter((_, index) => index % stride === 0 || index === longest.length - 1).map((point) => {
    const x = point[axis];
    const slack = (longest.at(-1)[axis] - longest[0][axis]) / Math.max(1, longest.length - 1);
    const values = columns.filter(([xs]) => x >= xs[0] - slack && x <= xs.at(-1) + slack).map(([xs, points]) =>
      points[nearest(xs, x)]).map((item) => item[6] ?? item[4] ?? item[2]).filter(Number.isFinite);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return [point[0], point[1], Math.min(...values), Math.max(...values), mean, 0, mean];
  });
}
