// The calls of a training thread as bars below their callers, as wide as the time that they take; a click enlarges one.

import { h, scrollable } from "/static/dom.js";
import { number, percent } from "/static/format.js";

export function flame(root) {
  const view = h("div");
  const show = (node) => {
    const back = node === root ? "" : h("button.small", { onclick: () => show(root) }, "Whole step");
    view.replaceChildren(back, h("div.flame", {}, column(node, root, show)));
  };
  show(root);
  return scrollable("Calls", view);
}

function column(node, root, show) {
  const label = `${node.name}: ${number(1000 * node.seconds, 3)} ms, ${percent(node.seconds / root.seconds)} of a step`;
  const call = h(`button.flame-call.${kind(node.name)}`,
    { title: label, "aria-label": label, onclick: () => show(node) }, node.name);
  const children = node.children.map((child) => column(child, root, show));
  const rest = h("span");
  rest.style.flexGrow = Math.max(0,
    node.seconds - node.children.reduce((sum, child) => sum + child.seconds, 0)) / node.seconds;
  const element = h("div.flame-column", {}, call, children.length ? h("div.flame-row", {}, children, rest) : "");
  element.style.flexGrow = node.seconds / root.seconds;
  if (children.length) for (const [index, child] of children.entries())
    child.style.flexGrow = node.children[index].seconds / node.seconds;
  return element;
}

// An operator of PyTorch, a function of the user's, or something else.
function kind(name) {
  if (name.includes("::")) return "flame-operator";
  return / in /.test(name) ? "flame-function" : "flame-other";
}
