// Draws charts one after the other over several frames, so that many of them do not block the page.

const BUDGET_MS = 10; // Of each frame.

const waiting = new Set();
let frame;

// Has a chart draw itself in one of the next frames, once.
export function drawSoon(chart) {
  waiting.add(chart);
  frame ??= requestAnimationFrame(drawSome);
}

function drawSome() {
  frame = undefined;
  const begin = performance.now();
  for (const chart of waiting) {
    waiting.delete(chart);
    chart.drawNow();
    if (performance.now() - begin > BUDGET_MS) break;
  }
  if (waiting.size) frame = requestAnimationFrame(drawSome);
}
