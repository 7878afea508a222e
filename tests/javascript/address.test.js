import assert from "node:assert/strict";
import test from "node:test";

import { isShown, noteAddress, setQuery, writeAddress } from "/static/address.js";
import { query } from "/static/api.js";

function open(address) {
  const location = new URL(address);
  const written = [];
  globalThis.location = /** @type {any} */ (location);
  globalThis.history = /** @type {any} */ ({
    state: null,
    replaceState(_state, _title, url) {
      written.push(`${url.pathname}${url.search}`);
      location.href = url.href;
    },
  });
  noteAddress();
  return written;
}

test("changes in quick succession are written at once and together", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const written = open("https://host/runs?sort=step");
  setQuery({ q: "a" });
  setQuery({ q: "ab", tag: ["x", "y"] });
  setQuery({ sort: "" });
  assert.deepEqual(written, ["/runs?sort=step&q=a"]);
  context.mock.timers.tick(250);
  assert.deepEqual(written.slice(1), ["/runs?q=ab&tag=x&tag=y"]);
  assert.equal(isShown(), true);
  context.mock.timers.tick(250);
});

test("what was to be written of another page is given up", () => {
  const written = open("https://host/runs");
  location.href = "https://host/compare";
  assert.equal(isShown(), false);
  writeAddress();
  assert.deepEqual(written, []);
});

test("a query repeats the parameter of a list, and leaves out what is empty", () => {
  assert.equal(query({ run: ["a", "b&c"], key: "", by: undefined, from: 0 }), "run=a&run=b%26c&from=0");
});
