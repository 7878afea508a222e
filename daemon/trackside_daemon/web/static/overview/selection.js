// The selected runs, and what can be done with them, in a bar at the bottom of the window.

import { h, setText } from "/static/dom.js";
import { plural } from "/static/format.js";
import { query } from "/static/api.js";

const MAX_COMPARED = 32; // As on Compare and Export.

// `actions` are buttons beside Compare: a label, the role that it needs, and what it does with the ids. `listed()`
// returns the ids as they are listed, among which a click with Shift selects all from the one before.
export function runSelection(actions = [], listed = () => []) {
  const selected = new Set();
  const boxes = new Map();
  let last;
  const count = h("span", { role: "status" });
  const links = { compare: h("a.button.strong", {}, "Compare"), export: h("a.button", {}, "Export") };
  const buttons = actions.map(([label, role, act]) =>
    h(`button.needs-${role}`, { onclick: () => act([...selected]) }, label));
  const clear = h("button", { onclick: () => set([...selected], false) }, "Clear");
  const root = h("div.chosen", { hidden: true }, count, Object.values(links), buttons, clear);

  function set(ids, isSelected) {
    for (const id of ids) isSelected ? selected.add(id) : selected.delete(id);
    for (const [box, of] of boxes) {
      if (!box.isConnected) boxes.delete(box);
      box.checked = of().length > 0 && of().every((id) => selected.has(id));
    }
    root.hidden = !selected.size;
    const isMany = selected.size > MAX_COMPARED;
    setText(count, `${plural(selected.size, "run")} selected` +
      (isMany ? `; Compare and Export have at most ${MAX_COMPARED}` : ""));
    for (const [page, link] of Object.entries(links)) {
      link.hidden = isMany;
      link.setAttribute("href", `/${page}?${query({ run: [...selected] })}`);
    }
  }

  function range(id) {
    const ids = listed();
    const [from, to] = [ids.indexOf(last), ids.indexOf(id)].sort((a, b) => a - b);
    return from < 0 ? [id] : ids.slice(from, to + 1);
  }

  return {
    root,
    set,
    box(run) {
      const box = h("input", { type: "checkbox", "aria-label": `Select ${run.label ?? run.name}`,
        onclick: (event) => {
          set(event.shiftKey ? range(run.id) : [run.id], box.checked);
          last = run.id;
        } });
      box.checked = selected.has(run.id);
      boxes.set(box, () => [run.id]);
      return box;
    },
    // The box that selects all listed runs.
    allBox() {
      const isAll = () => listed().every((id) => selected.has(id));
      const box = h("input", { type: "checkbox", "aria-label": "Select all listed runs",
        onclick: () => set(listed(), !isAll()) });
      boxes.set(box, listed);
      return box;
    },
  };
}
