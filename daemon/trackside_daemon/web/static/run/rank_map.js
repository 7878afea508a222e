// A map of ranks over time: one row a rank, one column a part of the time. A straggler is a red row.

import { h, setText } from "/static/dom.js";
import { number, span, when } from "/static/format.js";

const ROW_HEIGHT = 14;
const MOST_HEIGHT = 420;
const RED = 2; // Times the median rank that are fully red.
const MODES = { own: "Own time", wait: "Wait for others" };

export class RankMap {
  constructor() {
    this.mode = "own";
    this.canvas = h("canvas.rank-map", { tabindex: 0, role: "img", onmousemove: (event) => this.#hover(event),
      onmouseleave: () => this.#describe(), onkeydown: (event) => this.#key(event) });
    this.ranks = h("div.rank-labels", { "aria-hidden": "true" });
    this.text = h("p.quiet", { role: "status" });
    const buttons = Object.entries(MODES).map(([mode, name]) => {
      const button = h("button",
        { "aria-pressed": String(mode === this.mode), onclick: () => this.#choose(mode) }, name);
      button.mode = mode;
      return button;
    });
    this.buttons = buttons;
    const head = h("div.tools", {}, h("h3", {}, "Ranks over time"),
      h("span.joined", { role: "group", "aria-label": "What the map shows" }, buttons));
    const ends = h("div.rank-ends.quiet", {}, this.first = h("span"), this.last = h("span"));
    this.root = h("figure.card.rank-figure", { hidden: true }, head,
      h("div.rank-grid", {}, this.ranks, h("div", {}, this.canvas, ends)), this.text);
  }

  // Called with the performance of the run.
  update({ times, ranks, straggler_ratio: slow }) {
    this.root.hidden = ranks.length < 2;
    if (this.root.hidden) return;
    this.times = times;
    this.rows = ranks;
    this.slow = slow;
    setText(this.first, when(times[0]));
    setText(this.last, when(times.at(-1)));
    this.#draw();
    if (!this.canvas.matches(":hover, :focus")) this.#describe();
  }

  #choose(mode) {
    this.mode = mode;
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.mode === mode));
    this.#draw();
    this.#describe();
  }

  // One pixel a cell; the style sheet enlarges the picture.
  #draw() {
    const { rows, times, canvas, mode } = this;
    [canvas.width, canvas.height] = [times.length, rows.length];
    const height = Math.min(MOST_HEIGHT, Math.max(4, ROW_HEIGHT) * rows.length);
    canvas.style.height = this.ranks.style.height = `${height}px`;
    const every = Math.ceil(rows.length / (height / ROW_HEIGHT));
    this.ranks.replaceChildren(...rows.filter((_, index) => index % every === 0)
      .map((row) => h("span", {}, String(row.rank))));
    const context = canvas.getContext("2d");
    const image = context.createImageData(times.length, rows.length);
    const largest = Math.max(1e-9, ...rows.flatMap((row) => row[mode].filter(Number.isFinite)));
    times.forEach((_, column) => {
      rows.forEach((row, line) =>
        image.data.set(color(row[mode][column], row.ratio[column], mode, largest), 4 * (line * times.length + column)));
    });
    context.putImageData(image, 0, 0);
  }

  #describe() {
    const ratios = this.rows.map((row) => ({ row, rank: row.rank, ratio: latestRatio(row) }));
    const worst = ratios.filter((item) => item.ratio >= this.slow).sort((a, b) => b.ratio - a.ratio)[0];
    const since = worst && when(this.times[slowSince(worst.row, this.slow)]);
    const text = worst
      ? `Rank ${worst.rank} takes ${number(worst.ratio, 3)} times the own time of the median rank, since ${since}.`
      : "No rank is slower than the others by its own time.";
    setText(this.text, text);
    this.canvas.setAttribute("aria-label",
      `${MODES[this.mode]} of ${this.rows.length} ranks over time. ${text} Arrow keys move over the cells.`);
  }

  #hover(event) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    this.#cell(Math.floor(((event.clientX - left) / width) * this.times.length),
      Math.floor(((event.clientY - top) / height) * this.rows.length));
  }

  #key(event) {
    const [right, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ??
      [];
    if (right === undefined) return;
    event.preventDefault();
    const [column, line] = this.at ?? [this.times.length - 1 - right, -down];
    this.#cell(column + right, line + down);
  }

  #cell(column, line) {
    this.at = [Math.min(this.times.length - 1, Math.max(0, column)), Math.min(this.rows.length - 1, Math.max(0, line))];
    const row = this.rows[this.at[1]];
    const [own, wait] = [row.own[this.at[0]], row.wait[this.at[0]]];
    const values = own === null ? "no steps" : `own time ${span(own)} a step, wait ${span(wait)}`;
    setText(this.text, `Rank ${row.rank}, until ${when(this.times[this.at[0]])}: ${values}`);
  }
}

// Returns the latest ratio of a rank's own time to that of the median rank.
export function latestRatio(row) {
  return row.ratio.findLast(Number.isFinite);
}

// Returns the index of the first part of the time since which a slow rank has been slow.
function slowSince({ ratio: all }, slow) {
  const normal = all.findLastIndex((ratio) => ratio !== null && ratio < slow);
  return all.findIndex((ratio, index) => index > normal && ratio !== null);
}

// Own time from quiet to red by the ratio to the median; waits from quiet to blue by their length.
function color(value, ratio, mode, largest) {
  if (!Number.isFinite(value)) return [128, 128, 128, 20];
  const share = mode === "own" ? (ratio - 1) / (RED - 1) : value / largest;
  const amount = Math.min(1, Math.max(0, share));
  return mode === "own" ? [200 + 20 * amount, 190 - 160 * amount, 180 - 140 * amount, 60 + 195 * amount] : [60, 120,
    220, 20 + 220 * amount];
}
