// The runs that are chosen to be compared, in a line at the foot of the window while there are any.

import { h, say } from "/static/dom.js";
import { plural } from "/static/words.js";
import { query } from "/static/api.js";

const MOST = 8; // As Compare has colours.

export function choosing() {
  const chosen = new Set();
  const boxes = new Set();
  const count = h("span", { role: "status" });
  const link = h("a.button.strong", {}, "Compare");
  const clear = h("button", { type: "button", onclick: () => empty() }, "Clear");
  const root = h("div.chosen", { hidden: true }, count, link, clear);

  function tell() {
    root.hidden = !chosen.size;
    const full = chosen.size >= MOST;
    say(count, `${plural(chosen.size, "run")} chosen${full ? `, ${MOST} at most` : ""}`);
    for (const box of boxes) {
      if (!box.isConnected) boxes.delete(box);
      box.disabled = full && !box.checked;
    }
    link.setAttribute("href", `/compare?${query({ run: [...chosen] })}`);
  }

  function empty() {
    chosen.clear();
    for (const box of boxes) box.checked = false;
    tell();
  }

  return {
    root,
    box(run) {
      const box = h("input", { type: "checkbox", "aria-label": `Compare ${run.name}` });
      box.checked = chosen.has(run.id);
      box.disabled = chosen.size >= MOST && !box.checked;
      boxes.add(box);
      box.addEventListener("change", () => {
        if (box.checked) chosen.add(run.id);
        else chosen.delete(run.id);
        tell();
      });
      return box;
    },
    forget(id) {
      chosen.delete(id);
      tell();
    },
  };
}
