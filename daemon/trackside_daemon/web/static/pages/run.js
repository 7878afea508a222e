import { h } from "/static/dom.js";

export const title = "Run";

export function show() {
  return { root: h("div", {}, h("h1", {}, "Run")) };
}
