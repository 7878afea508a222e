import assert from "node:assert/strict";
import test from "node:test";

import { isDue, later, poll } from "/static/polling.js";

function hide(isHidden) {
  /** @type {any} */ (document).hidden = isHidden;
}

test("nothing is due in a tab that nobody sees", () => {
  const past = performance.now() - 1000;
  hide(true);
  assert.equal(isDue(past, 500), false);
  hide(false);
  assert.deepEqual([isDue(past, 500), isDue(past, 5000)], [true, false]);
});

test("a delayed load waits until the tab is seen, and can be cancelled", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  let loads = 0;
  hide(true);
  later(100, () => { loads += 1; });
  context.mock.timers.tick(350);
  assert.equal(loads, 0);
  hide(false);
  context.mock.timers.tick(100);
  assert.equal(loads, 1);
  later(100, () => { loads += 1; })();
  context.mock.timers.tick(1000);
  assert.equal(loads, 1);
});

test("a page asks at an interval while it is seen, until it is left", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const page = new AbortController();
  let loads = 0;
  const ended = poll(100, async () => { loads += 1; }, page.signal);
  const pass = async () => {
    await new Promise((resolve) => setImmediate(resolve));
    context.mock.timers.tick(100);
    await new Promise((resolve) => setImmediate(resolve));
  };
  await pass();
  assert.equal(loads, 2);
  hide(true);
  await pass();
  hide(false);
  assert.equal(loads, 2);
  page.abort();
  await pass();
  await ended;
  assert.equal(loads, 2);
});
