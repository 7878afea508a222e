import { h } from "/static/dom.js";

export const title = "Export";

export function show() {
  return { root: h("div", {}, h("h1", {}, "Export")) };
}
