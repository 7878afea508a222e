// A modal dialog that exists only while it is open. Escape closes it, and the focus returns to where it was.

import { h } from "/static/dom.js";

let count = 0;

// `content` is the content of the form. `submit()` runs when the form is submitted; an error that it throws is shown.
export function openDialog(title, { content, submit, action }, signal) {
  count += 1;
  const name = `dialog-${count}`;
  const errorLine = h("p.bad", { role: "alert" });
  const submitButton = h("button.strong", { type: "submit" }, action);
  const close = () => root.close();
  const cancel = h("button", { onclick: close }, "Cancel");
  const onSubmit = async (event) => {
    event.preventDefault();
    errorLine.textContent = "";
    submitButton.disabled = true;
    try {
      await submit();
    } catch (problem) {
      errorLine.textContent = problem.message;
    }
    submitButton.disabled = false;
  };
  const form = h("form", { onsubmit: onSubmit }, h("h2", { id: name }, title), content, errorLine,
    h("div.tools", {}, cancel, submitButton));
  const root = h("dialog.asking", { "aria-labelledby": name, onclose: () => root.remove() }, form);
  signal.addEventListener("abort", close, { once: true });
  document.body.append(root);
  root.showModal();
  return { root, close, submitButton, cancel };
}
