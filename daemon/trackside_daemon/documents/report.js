// The curves of a report: one chart per key, with a line for each run.

const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const charts = [];
const HEIGHT = 220;
const PRINT_WIDTH = 310;
const FILTER_FROM = 12; // Charts from which the page has a box to filter them.
let by = "step";

const theme = (name) => getComputedStyle(root).getPropertyValue(name).trim();

function h(tag, text = "", className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, className });
}

// Returns [x, last, low, high] in ascending order of x: a resumed run repeats steps.
function columns({ run, axis, last, low = last, high = last }) {
  const x = data.axes[run][axis][by];
  const order = x.map((_, index) => index).sort((a, b) => x[a] - x[b] || a - b).filter((at, place, all) => x[at] !== x[all[place + 1]]);
  return [x, last, low, high].map((values) => order.map((at) => values[at]));
}

// Returns the position of a time on the axis.
function position(run, time) {
  if (by === "time") return time;
  const axis = data.axes[run].reduce((best, other) => (other.step.length > best.step.length ? other : best));
  const at = axis.time.findIndex((other) => other >= time);
  return axis.step[at < 0 ? axis.step.length - 1 : at];
}

// Returns the index of the nearest value: runs push at different steps.
function nearest(u, series, index) {
  const values = u.data[series];
  for (let away = 0; away < values.length; away += 1) {
    if (Number.isFinite(values[index - away])) return index - away;
    if (Number.isFinite(values[index + away])) return index + away;
  }
  return index;
}

function drawMarks(u, lines) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.lineWidth = devicePixelRatio;
  for (const run of new Set(lines.map((line) => line.run))) {
    for (const [time, severity] of data.marks[run]) {
      const x = Math.round(u.valToPos(position(run, time), "x", true)) + 0.5;
      ctx.strokeStyle = theme({ critical: "--bad", warning: "--warn" }[severity] ?? "--quiet");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
  }
  ctx.restore();
}

// Draws a cross on the axis for each point with NaN or infinities.
function drawNonfinite(u, lines) {
  const { ctx, bbox } = u;
  const size = 3 * devicePixelRatio;
  const y = bbox.top + bbox.height - size - 1;
  ctx.save();
  ctx.lineWidth = 1.5 * devicePixelRatio;
  lines.forEach(({ run, axis, nonfinite = [] }, index) => {
    ctx.strokeStyle = theme(`--s${index % 8}`);
    ctx.beginPath();
    for (const place of nonfinite) {
      const x = u.valToPos(data.axes[run][axis][by][place], "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.moveTo(x - size, y - size);
      ctx.lineTo(x + size, y + size);
      ctx.moveTo(x + size, y - size);
      ctx.lineTo(x - size, y + size);
    }
    ctx.stroke();
  });
  ctx.restore();
}

function options(chart) {
  const axis = { stroke: () => theme("--quiet"), grid: { stroke: () => theme("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const series = chart.lines.flatMap((line, index) => {
    const stroke = () => theme(`--s${index % 8}`);
    const points = { show: line.last.length < 3 };
    return [{ stroke, width: 1.5, points }, { width: 0, points: { show: false } }, { width: 0, points: { show: false } }];
  });
  const band = (index) => () => `color-mix(in srgb, ${theme(`--s${index % 8}`)} 20%, transparent)`;
  return {
    width: chart.plot.clientWidth || PRINT_WIDTH,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, sync: { key: "report" }, points: { show: false }, dataIdx: nearest },
    scales: { x: { time: false } },
    axes: [{ ...axis, size: 28, values: (u, splits) => splits.map((item) => (by === "time" ? span(item) : number(item))) }, { ...axis, size: 62, values: (u, splits) => splits.map((item) => number(item)) }],
    series: [{}, ...series],
    bands: chart.lines.map((_, index) => ({ series: [3 * index + 3, 3 * index + 2], fill: band(index) })),
    hooks: { draw: [(u) => drawMarks(u, chart.lines), (u) => drawNonfinite(u, chart.lines)], setCursor: [(u) => showValues(chart, u)] },
  };
}

function showValues(chart, u) {
  const hovers = u.cursor.idx !== null && u.cursor.idx !== undefined;
  chart.values.forEach((value, index) => {
    const at = hovers ? u.cursor.idxs[3 * index + 1] : null;
    value.textContent = at === null || at === undefined ? (chart.lines[index].ends ?? number(chart.last[index])) : `${number(u.data[3 * index + 1][at])} at ${by === "time" ? span(u.data[0][at]) : u.data[0][at]}`;
  });
}

function draw(chart) {
  chart.u?.destroy();
  const tables = chart.lines.map(columns);
  chart.last = tables.map((table) => table[1].findLast((value) => value !== null));
  chart.u = new uPlot(options(chart), uPlot.join(tables, tables.map((table) => table.map(() => 1))), chart.plot);
  showValues(chart, chart.u);
}

function build({ key, lines }, container) {
  const chart = { key, lines, root: h("figure"), plot: h("div"), values: lines.map(() => h("b")) };
  const caption = h("figcaption");
  lines.forEach(({ label }, index) => {
    const entry = h("span");
    entry.append(h("i", "", `c${index % 8}`), lines.length > 1 ? `${label} ` : "", chart.values[index]);
    caption.append(entry);
  });
  chart.plot.setAttribute("role", "img");
  chart.plot.setAttribute("aria-label", `${key}; the tables have its values`);
  chart.root.append(h("h3", key), chart.plot, caption);
  container.append(chart.root);
  charts.push(chart);
}

function resize(width) {
  for (const { u, plot } of charts) u.setSize({ width: width ?? plot.clientWidth, height: HEIGHT });
}

const container = document.getElementById("charts");
container.replaceChildren();
data.charts.forEach((chart) => build(chart, container));
charts.forEach(draw);
document.querySelector(".tools").hidden = false;
document.getElementById("search").hidden = charts.length < FILTER_FROM;
document.getElementById("filter").addEventListener("input", ({ target }) => charts.forEach((chart) => (chart.root.hidden = !chart.key.toLowerCase().includes(target.value.toLowerCase()))));
document.getElementById("by").addEventListener("change", ({ target }) => {
  by = target.value;
  charts.forEach(draw);
});
window.addEventListener("resize", () => resize());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(({ u }) => u.redraw()));
window.addEventListener("beforeprint", () => {
  root.classList.add("printing");
  resize(PRINT_WIDTH);
});
window.addEventListener("afterprint", () => {
  root.classList.remove("printing");
  resize();
});

// Each series of images, texts or tables gets a slider over its steps; without a script all of them are shown.
for (const series of document.querySelectorAll(".series")) {
  const figures = [...series.querySelectorAll("figure")];
  if (figures.length < 2) continue;
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: figures.length - 1, value: figures.length - 1 });
  slider.setAttribute("aria-label", `Step of ${series.getAttribute("aria-label")}`);
  const show = () => figures.forEach((figure, index) => (figure.hidden = index !== Number(slider.value)));
  slider.addEventListener("input", show);
  figures.at(-1).after(slider);
  show();
}
