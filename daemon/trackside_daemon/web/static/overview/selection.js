// The runs selected for comparison, in a bar at the bottom of the window.

import { h, setText } from "/static/dom.js";
import { plural } from "/static/format.js";
import { query } from "/static/api.js";

const MAX_RUNS = 32; // As on Compare.

export function runSelection() {
  const selected = new Set();
  const boxes = new Set();
  const count = h("span", { role: "status" });
  const link = h("a.button.strong", {}, "Compare");
  const clear = h("button", { onclick: () => empty() }, "Clear");
  const root = h("div.chosen", { hidden: true }, count, link, clear);

  function update() {
    root.hidden = !selected.size;
    const isFull = selected.size >= MAX_RUNS;
    setText(count, `${plural(selected.size, "run")} selected${isFull ? `, at most ${MAX_RUNS}` : ""}`);
    for (const box of boxes) {
      if (!box.isConnected) boxes.delete(box);
      box.disabled = isFull && !box.checked;
    }
    link.setAttribute("href", `/compare?${query({ run: [...selected] })}`);
  }

  function empty() {
    selected.clear();
    for (const box of boxes) box.checked = false;
    update();
  }

  return {
    root,
    box(run) {
      const box = h("input", { type: "checkbox", "aria-label": `Compare ${run.name}` });
      box.checked = selected.has(run.id);
      box.disabled = selected.size >= MAX_RUNS && !box.checked;
      boxes.add(box);
      box.addEventListener("change", () => {
        if (box.checked) selected.add(run.id);
        else selected.delete(run.id);
        update();
      });
      return box;
    },
    remove(id) {
      selected.delete(id);
      update();
    },
  };
}
