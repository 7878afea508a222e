// Modal dialogs, which exist only while they are open. Escape cancels, and the focus returns to where it was.

import { h } from "/static/dom.js";

let count = 0;

// `content` is the content of the form. `submit()` runs when the form is submitted; an error that it, or a call of
// `attempt`, throws is shown.
export function openDialog(title, { content, submit, action }, signal) {
  count += 1;
  const name = `dialog-${count}`;
  const errorLine = h("p.bad", { role: "alert" });
  const submitButton = h("button.strong", { type: "submit" }, action);
  const close = () => root.close();
  const cancel = h("button", { onclick: close }, "Cancel");
  const attempt = async (call) => {
    errorLine.textContent = "";
    submitButton.disabled = true;
    try {
      await call();
    } catch (problem) {
      errorLine.textContent = problem.message;
    }
    submitButton.disabled = false;
  };
  const onsubmit = (event) => {
    event.preventDefault();
    attempt(submit);
  };
  const form = h("form", { onsubmit }, h("h2", { id: name }, title), content, errorLine,
    h("div.tools", {}, cancel, submitButton));
  const root = h("dialog.asking", { "aria-labelledby": name, onclose: () => root.remove() }, form);
  signal.addEventListener("abort", close, { once: true });
  document.body.append(root);
  root.showModal();
  return { root, close, submitButton, cancel, attempt };
}

// Resolves to true when the user confirms with the button `verb`; false otherwise, also when `signal` is aborted.
export function confirmDialog(question, explanation, verb, signal) {
  const id = `explanation-${count}`;
  const submit = () => root.close(verb);
  const { root } = openDialog(question, { content: h("p", { id }, explanation), submit, action: verb }, signal);
  root.setAttribute("aria-describedby", id);
  return new Promise((resolve) => { root.addEventListener("close", () => resolve(root.returnValue === verb)); });
}

const UNDO_MS = 10_000;

// Says what is done, in a bar at the bottom; resolves to whether the user takes it back in time, and to false when
// `signal` is aborted or the tab is closed.
export function undone(text, signal) {
  return new Promise((resolve) => {
    const end = (isUndone) => {
      clearTimeout(timer);
      bar.remove();
      resolve(isUndone);
    };
    const undo = h("button.strong", { onclick: () => end(true) }, "Undo");
    const bar = h("div.chosen.undo", { role: "status" }, text, undo);
    const timer = setTimeout(end, UNDO_MS, false);
    signal.addEventListener("abort", () => end(false), { once: true });
    addEventListener("pagehide", () => end(false), { signal, once: true });
    document.body.append(bar);
  });
}
