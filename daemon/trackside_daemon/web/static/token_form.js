// The notice of a page that lacks the token, with a field to paste it.

import { keepToken } from "/static/api.js";
import { h } from "/static/dom.js";

// Returns the notice. `wasOpen`: the page was shown with an earlier token. `onToken` is called with a new one.
export function tokenForm(problem, wasOpen, onToken) {
  const wrong = wasOpen ? "The daemon has a new token" : "The token is wrong";
  const field = h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const submit = (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    keepToken(field.value);
    onToken();
  };
  return h("section.notice", { role: "alert" },
    h("h1", {}, sessionStorage.getItem("token") ? wrong : "The token is missing"),
    h("form.tools", { onsubmit: submit }, h("label", { for: "token" }, "Token, or a link with it "), field,
      h("button.strong", { type: "submit" }, "Open")),
    h("p", {}, "In a terminal on the daemon's machine, ", h("code", {}, "trackside token"), " prints the token, and ",
      h("code", {}, "trackside open"), " a link with it."),
    h("p.quiet", {}, `The daemon's answer: ${problem.message}.`));
}
