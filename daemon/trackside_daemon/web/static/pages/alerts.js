import { h } from "/static/dom.js";

export const title = "Alerts";

export function show() {
  return { root: h("div", {}, h("h1", {}, "Alerts")) };
}
