// Draws and loads charts one after the other over several frames, so that many of them do not block the page.

const FRAME_MS = 16; // Of each frame, for loads and first plots.

const toDraw = new Set();
const toLoad = new Set();
let frame;
let after = () => {};

// Have a chart draw itself, or load its data, in one of the next frames, once.
export const [drawSoon, loadSoon] = [toDraw, toLoad].map((charts) => (chart) => {
  charts.add(chart);
  frame ??= requestAnimationFrame(next);
});

// Calls a function, the last one it was given, after a frame in which no chart waits any more.
export const afterDrawing = (call) => { after = call; };

// First plots come first, several a frame, since nothing moves yet; then one that changes: its painting takes longer.
function next() {
  frame = undefined;
  const end = performance.now() + FRAME_MS;
  for (const chart of toLoad) {
    toLoad.delete(chart);
    chart.loadNow();
    if (performance.now() > end) break;
  }
  for (const chart of [...toDraw].sort((a, b) => Number(Boolean(a.u)) - Number(Boolean(b.u)))) {
    toDraw.delete(chart);
    const changes = Boolean(chart.u);
    if (chart.drawNow() && (changes || performance.now() > end)) break;
  }
  if (toDraw.size || toLoad.size) frame = requestAnimationFrame(next);
  else after();
}
