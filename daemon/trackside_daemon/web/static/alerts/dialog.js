// A dialog that is there only while it is open. Escape closes it, and the focus goes back to where it was.

import { h } from "/static/dom.js";

let count = 0;

// `fill(close)` returns what is in its form; `submit()` is called for its button, and may throw: that is shown.
export function dialog(title, { fill, submit, action }, signal) {
  count += 1;
  const name = `dialog-${count}`;
  const wrong = h("p.bad", { role: "alert" });
  const send = h("button.strong", { type: "submit" }, action);
  const close = () => root.close();
  const cancel = h("button", { type: "button", onclick: close }, "Cancel");
  const sent = async (event) => {
    event.preventDefault();
    wrong.textContent = "";
    send.disabled = true;
    try {
      await submit();
    } catch (problem) {
      wrong.textContent = problem.message;
    }
    send.disabled = false;
  };
  const form = h("form", { onsubmit: sent }, h("h2", { id: name }, title), fill, wrong, h("div.tools", {}, cancel, send));
  const root = h("dialog.asking", { "aria-labelledby": name, onclose: () => root.remove() }, form);
  signal.addEventListener("abort", close, { once: true });
  document.body.append(root);
  root.showModal();
  return { root, close, send, cancel };
}
