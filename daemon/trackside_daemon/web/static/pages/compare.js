import { h } from "/static/dom.js";

export const title = "Compare";

export function show() {
  return { root: h("div", {}, h("h1", {}, "Compare")) };
}
