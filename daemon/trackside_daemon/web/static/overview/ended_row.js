// One run that has ended, as a row: `acts` are what its buttons do, `tag`, `pin` and `delete`.

import { h, say } from "/static/dom.js";
import { badge, renew } from "/static/parts.js";
import { number, runAddress, span, when } from "/static/words.js";

export function endedRow(first, choice, acts) {
  let run = first;
  const state = badge();
  const cells = {
    step: h("td.number.step", { "data-name": "Step" }),
    loss: h("td.number.loss", { "data-name": "Loss" }),
    started: h("td.wide"),
    took: h("td.wide"),
  };
  const tags = h("div.tags");
  const pin = h("button.small", { type: "button", onclick: () => acts.pin(run) });
  const gone = h("button.small", { type: "button", "aria-label": `Delete ${first.name}`, onclick: () => acts.delete(run) }, "Delete");
  const name = h("a.clamp", { href: runAddress(first.id), title: first.name }, first.name);
  const box = h("td.box", {}, choice.box(first));
  const named = h("th.name", { scope: "row" }, h("div.named", {}, name, tags));
  const row = h("tr", {}, box, named, h("td.state", {}, state), Object.values(cells), h("td.acts", {}, pin, gone));
  const tagged = (tag) => h("button.tag", { type: "button", "aria-label": `Only tag ${tag}`, onclick: () => acts.tag(tag) }, tag);
  row.told = (now) => {
    run = now;
    state.told(run.state);
    state.title = run.cause ?? "";
    say(cells.step, number(run.step));
    say(cells.loss, number(run.loss));
    cells.loss.classList.toggle("nonfinite", typeof run.loss === "string");
    say(cells.started, when(run.started));
    say(cells.took, run.ended === null ? "" : span(run.ended - run.started));
    renew(tags, JSON.stringify(run.tags), () => run.tags.map(tagged));
    say(pin, run.pinned ? "Pinned" : "Pin");
    pin.setAttribute("aria-pressed", String(run.pinned));
    pin.setAttribute("aria-label", `${run.pinned ? "Pinned" : "Pin"} ${run.name}`);
    pin.title = run.pinned ? "Kept whatever the bounds are" : "Keep it whatever the bounds are";
  };
  return row;
}
