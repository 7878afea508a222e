// One ended run as a table row. `actions` are the callbacks of its buttons: `tag`, `pin` and `delete`.

import { h, setText } from "/static/dom.js";
import { badge, rerender } from "/static/components.js";
import { number, runAddress, span, when } from "/static/format.js";

export function endedRow(first, selection, actions) {
  let run = first;
  const state = badge();
  const cells = {
    step: h("td.number.step", { "data-name": "Step" }),
    loss: h("td.number.loss", { "data-name": "Loss" }),
    started: h("td.wide"),
    took: h("td.wide"),
  };
  const owner = h("span.quiet");
  const tags = h("div.tags");
  const pin = h("button.small", { type: "button", onclick: () => actions.pin(run) });
  const deleteButton = h("button.small", { type: "button", "aria-label": `Delete ${first.name}`, onclick: () => actions.delete(run) }, "Delete");
  const name = h("a.clamp", { href: runAddress(first.id), title: first.name }, first.name);
  const checkboxCell = h("td.box", {}, selection.box(first));
  const nameCell = h("th.name", { scope: "row" }, h("div.named", {}, name, owner, tags));
  const row = h("tr", {}, checkboxCell, nameCell, h("td.state", {}, state), Object.values(cells), h("td.acts", {}, pin, deleteButton));
  const tagButton = (tag) => h("button.tag", { type: "button", "aria-label": `Show only tag ${tag}`, onclick: () => actions.tag(tag) }, tag);
  row.update = (newest) => {
    run = newest;
    state.update(run.state);
    state.title = run.cause ?? "";
    setText(cells.step, number(run.step));
    setText(cells.loss, number(run.loss));
    cells.loss.classList.toggle("nonfinite", typeof run.loss === "string");
    setText(cells.started, when(run.started));
    setText(cells.took, run.ended === null ? "" : span(run.ended - run.started));
    setText(owner, run.owner);
    owner.hidden = !run.owner;
    rerender(tags, JSON.stringify(run.tags), () => run.tags.map(tagButton));
    setText(pin, run.pinned ? "Pinned" : "Pin");
    pin.setAttribute("aria-pressed", String(run.pinned));
    pin.setAttribute("aria-label", `${run.pinned ? "Pinned" : "Pin"} ${run.name}`);
    pin.title = run.pinned ? "The history limits do not delete this run" : "Exempt this run from the history limits";
  };
  return row;
}
