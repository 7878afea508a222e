import { h } from "/static/dom.js";

export const title = "System";

export function show() {
  return { root: h("div", {}, h("h1", {}, "System")) };
}
