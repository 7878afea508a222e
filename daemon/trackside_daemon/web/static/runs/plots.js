// Settings against a result, over many runs: a scatter plot, and parallel coordinates.

import { h, setText, svg, fold, fillSelect } from "/static/dom.js";
import { allColumns, columnOf, isNumeric, text } from "/static/runs/columns.js";
import { roundSplits, tickTexts } from "/static/charts/ticks.js";
import { real, runAddress } from "/static/format.js";

const WIDTH = 720;
const HEIGHT = 300;
const MARGIN = { left: 64, right: 24, top: 14, bottom: 44 };
const MOST_AXES = 8;
const MOST_RUNS = 1000;

// `chosen` is { x, result } as in the address, and `onChoose(chosen)` is called when the user changes it.
export class Plots {
  constructor(chosen, onChoose) {
    this.chosen = chosen;
    this.onChoose = onChoose;
    this.x = h("select", { onchange: () => this.#choose() });
    this.result = h("select", { onchange: () => this.#choose() });
    this.scatter = h("figure.card.plot-figure");
    this.parallel = h("figure.card.plot-figure");
    this.text = h("p.quiet", { role: "status" });
    const tools = h("div.tools", {}, h("label", {}, "Result", this.result), h("label", {}, "Setting", this.x));
    this.root = fold("Settings against a result", { ontoggle: () => this.#draw() }, [], tools,
      h("div.pair", {}, this.scatter, this.parallel), this.text);
  }

  // Shows prepared runs; `keys` are keys whose values they have.
  update(runs, keys = []) {
    this.runs = runs.slice(0, MOST_RUNS);
    const groups = new Map(allColumns(this.runs, keys));
    const numeric = (ids = []) => ids.filter((id) =>
      isNumeric(columnOf(id), this.runs) && new Set(this.runs.map((run) => columnOf(id).value(run))).size > 1);
    this.results = [...numeric(groups.get("Results")), ...numeric(["loss", ...(groups.get("Keys") ?? [])])];
    this.settings = (groups.get("Configuration") ?? []).filter((id) =>
      new Set(this.runs.map((run) => text(columnOf(id), columnOf(id).value(run))).filter(Boolean)).size > 1);
    this.root.hidden = this.runs.length < 3 || !this.results.length || !this.settings.length;
    if (this.root.hidden) return;
    this.chosen.result = this.results.includes(this.chosen.result) ? this.chosen.result : this.results[0];
    this.chosen.x = this.settings.includes(this.chosen.x) ? this.chosen.x : this.settings[0];
    const titleOf = (id) => columnOf(id).title;
    fillSelect(this.result, this.results, titleOf, this.chosen.result);
    fillSelect(this.x, this.settings, titleOf, this.chosen.x);
    this.#draw();
  }

  #choose() {
    this.chosen = { x: this.x.value, result: this.result.value };
    this.onChoose(this.chosen);
    this.#draw();
  }

  #draw() {
    if (this.root.hidden || !this.root.open || !this.runs) return;
    const [x, result] = [columnOf(this.chosen.x), columnOf(this.chosen.result)];
    const shown = this.runs.filter((run) => Number.isFinite(real(result.value(run))));
    this.scatter.replaceChildren(h("figcaption", {}, `${result.title} by ${x.title}`), scatter(shown, x, result));
    const axes = [...this.settings.slice(0, MOST_AXES - 1).map(columnOf), result];
    this.parallel.replaceChildren(h("figcaption", {}, "Each line is a run, colored by its result"),
      parallel(shown, axes, (run) => this.#describe(run, axes)));
  }

  #describe(run, axes) {
    setText(this.text, `${run.label}: ${axes.map((column) => `${column.title} ${text(column, column.value(run))}`)
      .join(", ")}`);
  }
}

// Returns the place of a value from 0 to 1, and ticks [place, text]: of numbers on a linear or, over two decades, a log
// scale; of other values one beside the other.
function scale(column, runs) {
  const values = runs.map(column.value).filter((value) => value !== undefined && value !== null);
  const numbers = values.map(real);
  if (!numbers.length || !numbers.every(Number.isFinite)) {
    const names = [...new Set(values.map((value) => text(column, value)))].sort();
    const at = (value) => (names.indexOf(text(column, value)) + 0.5) / names.length;
    return { place: at, ticks: names.map((name, index) => [(index + 0.5) / names.length, name.slice(0, 14)]) };
  }
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const isLog = low > 0 && high / low >= 30;
  const to = isLog ? Math.log10 : (value) => value;
  const [begin, end] = [to(low), to(high)];
  const place = (value) => 0.04 + 0.92 * (end > begin ? (to(real(value)) - begin) / (end - begin) : 0.5);
  const distinct = [...new Set(numbers)].sort((a, b) => a - b);
  const parts = isLog ? [0, 1, 2, 3, 4].map((part) => 10 ** (begin + (part / 4) * (end - begin))) : [];
  const round = isLog ? parts.map((value) => Number(value.toPrecision(1))) : roundSplits(low, high);
  const shown = distinct.length <= 6 ? distinct : round;
  const texts = tickTexts(shown, isLog);
  return { place, ticks: shown.map((value, index) => [place(value), texts[index]]) };
}

function scatter(runs, x, result) {
  const [across, up] = [scale(x, runs), scale(result, runs)];
  const [width, height] = [WIDTH - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.top - MARGIN.bottom];
  const left = (value) => MARGIN.left + across.place(value) * width;
  const top = (value) => MARGIN.top + (1 - up.place(value)) * height;
  const grid = [
    across.ticks.map(([place, name]) =>
      svg("text.tick.middle", { x: MARGIN.left + place * width, y: HEIGHT - MARGIN.bottom + 18 }, name)),
    up.ticks.map(([place, name]) => {
      const y = MARGIN.top + (1 - place) * height;
      return [svg("line", { x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y, y2: y }),
        svg("text.tick.end", { x: MARGIN.left - 8, y: y + 4 }, name)];
    }),
    svg("text.tick.middle", { x: MARGIN.left + width / 2, y: HEIGHT - 6 }, x.title),
  ];
  const dots = runs.filter((run) => x.value(run) !== undefined && x.value(run) !== null).map((run) => {
    const title =
      `${run.label}: ${x.title} ${text(x, x.value(run))}, ${result.title} ${text(result, result.value(run))}`;
    return svg("a", { href: runAddress(run.id), "aria-label": title },
      svg("circle", { cx: left(x.value(run)), cy: top(result.value(run)), r: 5 }, svg("title", {}, title)));
  });
  return svg("svg.scatter", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group",
    "aria-label": `${result.title} by ${x.title}, ${runs.length} runs` }, grid, dots);
}

function parallel(runs, axes, onHover) {
  const scales = axes.map((column) => scale(column, runs));
  const height = HEIGHT - MARGIN.top - MARGIN.bottom;
  const left = (index) => MARGIN.left + (index / Math.max(1, axes.length - 1)) *
    (WIDTH - MARGIN.left - 2 * MARGIN.right);
  const top = (place) => MARGIN.top + (1 - place) * height;
  const frame = axes.map((column, index) => [
    svg("line.axis", { x1: left(index), x2: left(index), y1: MARGIN.top, y2: MARGIN.top + height }),
    scales[index].ticks.map(([place, name]) => svg("text.tick.end", { x: left(index) - 5, y: top(place) + 4 }, name)),
    svg("text.tick.middle", { x: left(index), y: HEIGHT - (index % 2 ? 8 : 24) }, column.title.slice(0, 18)),
  ]);
  const result = axes.at(-1);
  const lines = runs.map((run) => {
    const points = axes.flatMap((column, index) => (column.value(run) === undefined || column.value(run) === null
      ? [] : [`${left(index).toFixed(1)},${top(scales[index].place(column.value(run))).toFixed(1)}`]));
    const share = scales.at(-1).place(result.value(run));
    const line = svg("polyline", { points: points.join(" "), onmouseenter: () => onHover(run) },
      svg("title", {}, `${run.label}: ${result.title} ${text(result, result.value(run))}`));
    line.style.stroke = `color-mix(in srgb, var(--s2) ${Math.round(100 * share)}%, var(--s1))`;
    return line;
  });
  return svg("svg.parallel", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": `Parallel coordinates of ${runs.length} runs: ${axes.map((column) => column.title).join(", ")}` },
      lines, frame);
}
