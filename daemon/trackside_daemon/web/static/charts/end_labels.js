// Labels at the right end of lines: their names. The value of a single line stands in the chart's head.

import { seriesColor } from "/static/charts/colors.js";

const FONT = "11px Inter, system-ui, sans-serif";
const MOST_LINES = 12; // With more lines, labels would cover each other.
const MOST_CHARACTERS = 14;
const LINE_HEIGHT = 12;
const GAP = 5;
const measure = document.createElement("canvas").getContext("2d");

// Returns the width in pixels that the labels need beside the plot.
export function endLabelWidth({ drawn }) {
  measure.font = FONT;
  const widths = labels(drawn).map(({ text }) => measure.measureText(text).width);
  return Math.ceil(Math.max(10, ...widths) + 2 * GAP);
}

// Each line's last value within the window { text, index, value }.
function labels(drawn, to = Infinity) {
  const shown = drawn.filter(({ columns }) => columns.mean.some((value) => value !== null));
  if (shown.length > MOST_LINES || shown.length < 2) return [];
  return shown.flatMap(({ line, columns, smoothed }) => {
    const values = smoothed ?? columns.stack ?? columns.mean;
    const last = values.findLastIndex((value, index) => value !== null && columns.x[index] <= to);
    if (last < 0) return [];
    return [{ text: shortened(line.label), index: line.index, value: values[last] }];
  });
}

function shortened(label) {
  return label.length > MOST_CHARACTERS ? `${label.slice(0, MOST_CHARACTERS - 1)}…` : label;
}

// Draws the labels beside the plot, one below the other where lines end close together.
export function drawEndLabels(u, { drawn, window }) {
  const ratio = devicePixelRatio;
  const [top, bottom] = [u.bbox.top, u.bbox.top + u.bbox.height];
  const items = labels(drawn, window()[1])
    .map((item) => ({ ...item, y: Math.min(bottom, Math.max(top, u.valToPos(item.value, "y", true))) }));
  items.sort((a, b) => a.y - b.y);
  items.forEach((item, index) => {
    if (index) item.y = Math.max(item.y, items[index - 1].y + LINE_HEIGHT * ratio);
  });
  // Back up from the lower edge, so that no label stands below the plot.
  for (let index = items.length - 1, limit = bottom; index >= 0; index -= 1) {
    items[index].y = Math.min(items[index].y, limit);
    limit = items[index].y - LINE_HEIGHT * ratio;
  }
  u.ctx.save();
  u.ctx.font = FONT.replace("11px", `${11 * ratio}px`);
  u.ctx.textBaseline = "middle";
  u.ctx.textAlign = "left";
  for (const { text, index, y } of items) {
    u.ctx.fillStyle = seriesColor(index);
    u.ctx.fillText(text, u.bbox.left + u.bbox.width + GAP * ratio, y);
  }
  u.ctx.restore();
}
