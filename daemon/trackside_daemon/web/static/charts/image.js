// A chart as a PNG image: title, lines and their names, on the page's background.

import { seriesColor, themeColor } from "/static/charts/colors.js";

const ROW = 20;
const FONT = "13px Inter, system-ui, sans-serif";

const SIZE = { width: 1000, height: 480 }; // For a slide, however small the chart is.

export async function chartImage({ pictureTitle, u, view, legend }) {
  if (!u) throw new Error("there is nothing to draw yet");
  const ratio = devicePixelRatio;
  const { width: shownWidth, height: shownHeight } = u;
  u.setSize(SIZE);
  await undefined; // uPlot draws before this goes on, and the page shows its earlier size again before it is painted.
  const plot = u.ctx.canvas;
  const canvas = document.createElement("canvas");
  const ctx = canvas.getContext("2d");
  const width = plot.width / ratio + 24;
  const entries = legendRows(ctx, view, legend, width);
  const height = 40 + plot.height / ratio + ROW * (entries.at(-1)?.row + 1 || 0) + 12;
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  ctx.scale(ratio, ratio);
  ctx.fillStyle = themeColor("page");
  ctx.fillRect(0, 0, width, height);
  ctx.fillStyle = themeColor("ink");
  ctx.font = `600 15px Inter, system-ui, sans-serif`;
  ctx.fillText(pictureTitle, 12, 24, width - 24);
  ctx.drawImage(plot, 12, 36, plot.width / ratio, plot.height / ratio);
  u.setSize({ width: shownWidth, height: shownHeight });
  ctx.font = FONT;
  for (const { text, index, x, row } of entries) {
    const y = 48 + plot.height / ratio + ROW * row;
    ctx.fillStyle = seriesColor(index);
    ctx.fillRect(x, y - 1, 14, 3);
    ctx.fillStyle = themeColor("ink");
    ctx.fillText(text, x + 20, y + 4);
  }
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

export function legendRows(ctx, { drawn }, legend, imageWidth) {
  ctx.font = FONT;
  let x = 12;
  let row = 0;
  return drawn.map(({ line, columns }) => {
    const text = legend.text({ line, value: columns.raw.at(-1) }) || line.label || "";
    const width = 40 + ctx.measureText(text).width;
    if (x + width > imageWidth && x > 12) [x, row] = [12, row + 1];
    const entry = { text, index: line.index, x, row };
    x += width;
    return entry;
  });
}
