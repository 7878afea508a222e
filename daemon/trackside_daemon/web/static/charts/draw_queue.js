// Draws and loads charts one after the other over several frames, so that many of them do not block the page.

const LOAD_MS = 4; // Of each frame.

const toDraw = new Set();
const toLoad = new Set();
let frame;

// Has a chart draw itself in one of the next frames, once.
export function drawSoon(chart) {
  toDraw.add(chart);
  frame ??= requestAnimationFrame(next);
}

// Has a chart load its data in one of the next frames, once.
export function loadSoon(chart) {
  toLoad.add(chart);
  frame ??= requestAnimationFrame(next);
}

// One plot a frame: without a GPU, the browser needs longer to paint it than it takes to draw.
function next() {
  frame = undefined;
  const end = performance.now() + LOAD_MS;
  for (const chart of toLoad) {
    toLoad.delete(chart);
    chart.loadNow();
    if (performance.now() > end) break;
  }
  for (const chart of toDraw) if (toDraw.delete(chart) && chart.drawNow()) break;
  if (toDraw.size || toLoad.size) frame = requestAnimationFrame(next);
}
