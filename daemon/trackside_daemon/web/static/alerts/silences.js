// The silences that last, each with a button that ends it.

import { remove } from "/static/api.js";
import { h, rows, say } from "/static/dom.js";
import { matchers } from "/static/alerts/words.js";
import { when } from "/static/words.js";

// Said in so many words, since on a phone the cells of a row stand below each other.
const CELL = { role: "cell" };

// `ended(text)` is told what came of it when one was ended.
export function silences(ended) {
  const body = h("tbody");
  const head = h("tr", {}, ...["Alerts", "Until", "Comment"].map((one) => h("th", { scope: "col" }, one)), h("th", { scope: "col" }, h("span.unseen", {}, "End")));
  const table = h("div.scroll", {}, h("table.stacked", { role: "table", "aria-label": "Silences" }, h("thead", {}, head), body));
  const none = h("p.quiet", {}, "None.");
  const told = (found) => {
    none.hidden = found.length > 0;
    table.hidden = !found.length;
    rows(body, found, (one) => one.id, (one) => row(one, ended));
  };
  told([]);
  return { root: h("div", {}, none, table), told };
}

function row(silence, ended) {
  const until = h("td", CELL);
  const made = h("tr", { role: "row" }, h("td.text", CELL, matchers(silence.labels)), until, h("td.text", CELL, silence.comment), h("td.number", CELL, endButton(silence, ended)));
  made.told = (newest) => say(until, when(newest.until));
  return made;
}

export function endButton(silence, ended) {
  const about = Object.values(silence.labels).join(" ") || "all alerts";
  const end = async () => {
    button.disabled = true;
    try {
      const { kept, why } = await remove(`silences/${encodeURIComponent(silence.id)}`);
      ended(`The silence is ended; what fires of it is told now.${kept ? "" : ` After a restart it lasts again: ${why}.`}`);
    } catch (problem) {
      button.disabled = false;
      ended(problem.message);
    }
  };
  const button = h("button", { type: "button", "aria-label": `End the silence of ${about}`, onclick: end }, "End");
  return button;
}
