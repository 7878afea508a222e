import assert from "node:assert/strict";
import test from "node:test";

import { drawSoon } from "/static/charts/draw_queue.js";

test("first plots share a frame and come first, and each plot that changes has a frame of its own", (context) => {
  /** @type {(() => void)[]} */
  const frames = [];
  context.mock.method(performance, "now", () => 0);
  Object.assign(globalThis, { requestAnimationFrame: (/** @type {() => void} */ frame) => frames.push(frame) });
  /** @type {number[]} */
  const drawn = [];
  const chart = (/** @type {number} */ number, u = undefined) => ({ u, drawNow: () => drawn.push(number) });
  for (const item of [chart(3, {}), chart(1), chart(4, {}), chart(2)]) drawSoon(item);
  frames.shift()?.();
  assert.deepEqual(drawn, [1, 2, 3]);
  frames.shift()?.();
  assert.deepEqual(drawn, [1, 2, 3, 4]);
  assert.equal(frames.length, 0);
});
