// A confirmation in a native dialog. Escape cancels it.

import { h } from "/static/dom.js";

let count = 0;

// Resolves to true when the user confirms with the button `verb`; false otherwise, also when `signal` is aborted.
export function confirmDialog(question, explanation, verb, signal) {
  count += 1;
  const [named, described] = [`question-${count}`, `explanation-${count}`];
  return new Promise((resolve) => {
    const close = (answer) => () => dialog.close(answer);
    const dialog = h("dialog", { "aria-labelledby": named, "aria-describedby": described, onclose: () => done() },
      h("h2", { id: named }, question),
      h("p", { id: described }, explanation),
      h("div.tools", {}, h("button", { onclick: close("") }, "Cancel"),
        h("button.strong", { onclick: close("yes") }, verb)));
    const done = () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    };
    signal.addEventListener("abort", close(""), { once: true });
    document.body.append(dialog);
    dialog.showModal();
  });
}
