// A chart as a picture: title, lines, and their names below, on the page's background.

import { color, named } from "/static/charts/colors.js";
import { h } from "/static/dom.js";

const ROW = 20;
const FONT = "13px system-ui, sans-serif";

export async function picture({ title, u, view, legend }) {
  if (!u) throw new Error("there is nothing to draw yet");
  const ratio = devicePixelRatio;
  const plot = u.ctx.canvas;
  const canvas = document.createElement("canvas");
  const ctx = canvas.getContext("2d");
  const wide = plot.width / ratio + 24;
  const names = rowsOf(ctx, view, legend, wide);
  const tall = 40 + plot.height / ratio + ROW * (names.at(-1)?.row + 1 || 0) + 12;
  [canvas.width, canvas.height] = [wide * ratio, tall * ratio];
  ctx.scale(ratio, ratio);
  ctx.fillStyle = named("page");
  ctx.fillRect(0, 0, wide, tall);
  ctx.fillStyle = named("ink");
  ctx.font = `600 15px system-ui, sans-serif`;
  ctx.fillText(title, 12, 24, wide - 24);
  ctx.drawImage(plot, 12, 36, plot.width / ratio, plot.height / ratio);
  ctx.font = FONT;
  for (const { text, place, x, row } of names) {
    const y = 48 + plot.height / ratio + ROW * row;
    ctx.fillStyle = color(place);
    ctx.fillRect(x, y - 1, 14, 3);
    ctx.fillStyle = named("ink");
    ctx.fillText(text, x + 20, y + 4);
  }
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function rowsOf(ctx, { drawn }, legend, wide) {
  ctx.font = FONT;
  let x = 12;
  let row = 0;
  return drawn.map(({ line, columns }) => {
    const text = legend.text({ line, value: columns.told.at(-1) }) || line.label || "";
    const width = 40 + ctx.measureText(text).width;
    if (x + width > wide && x > 12) [x, row] = [12, row + 1];
    const found = { text, place: line.place, x, row };
    x += width;
    return found;
  });
}

// Hands a file to the person.
export function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: `${name.replace(/[^\w.-]+/g, "_")}.png` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
