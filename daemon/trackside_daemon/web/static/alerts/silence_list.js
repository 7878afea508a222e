// The active silences, each with a button that ends it.

import { remove } from "/static/api.js";
import { h, syncRows, setText, table, unseen } from "/static/dom.js";
import { silenceLabels } from "/static/alerts/format.js";
import { when } from "/static/format.js";

// Explicit roles: on a phone the cells of a row are stacked, which removes the table's implicit roles.
const CELL = { role: "cell" };

// `onEnded(text)` is called with the result after a silence was ended.
export function silenceList(onEnded) {
  const body = h("tbody");
  const columns = ["Alerts", "Until", "Comment", unseen("End")];
  const list = h("div.scroll", {}, table(columns, body, "table.stacked", { role: "table", "aria-label": "Silences" }));
  const emptyText = h("p.quiet", {}, "No active silences.");
  const update = (silences) => {
    emptyText.hidden = silences.length > 0;
    list.hidden = !silences.length;
    syncRows(body, silences, (item) => item.id, (item) => row(item, onEnded));
  };
  update([]);
  return { root: h("div", {}, emptyText, list), update };
}

function row(silence, onEnded) {
  const until = h("td", CELL);
  const element = h("tr", { role: "row" }, h("td.text", CELL, silenceLabels(silence.labels)), until,
    h("td.text", CELL, silence.comment), h("td.number", CELL, endButton(silence, onEnded)));
  element.update = (newest) => setText(until, when(newest.until));
  return element;
}

export function endButton(silence, onEnded) {
  const about = Object.values(silence.labels).join(" ") || "all alerts";
  const end = async () => {
    button.disabled = true;
    try {
      const { kept, why } = await remove(`silences/${encodeURIComponent(silence.id)}`);
      const later = kept ? "" : ` It becomes active again when the daemon restarts: ${why}.`;
      onEnded(`The silence has ended. Notifications of its firing alerts are sent now.${later}`);
    } catch (problem) {
      button.disabled = false;
      onEnded(problem.message);
    }
  };
  const button = h("button", { "aria-label": `End the silence of ${about}`, onclick: end }, "End");
  return button;
}
