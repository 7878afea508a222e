// The dialog that changes the name, tags, notes and pin of a run, or deletes it.

import { post, remove, runPath } from "/static/api.js";
import { confirmDialog } from "/static/confirm.js";
import { h, setText, ENDED } from "/static/dom.js";

// Resolves to "changed", "deleted" or undefined.
export function editRun(run, signal) {
  const path = runPath(run.id);
  const isEnded = ENDED.has(run.state);
  const name = h("input", { value: run.name, disabled: !isEnded,
    title: isEnded ? "" : "A run can be renamed when it has ended" });
  const tags = h("input", { value: run.tags.join(", "), placeholder: "baseline, paper" });
  const notes = h("textarea", { rows: 5 }, run.notes ?? "");
  const pinned = h("input", { type: "checkbox", checked: run.pinned });
  const error = h("p.bad", { role: "alert" });
  return new Promise((resolve) => {
    const attempt = async (call, result) => {
      try {
        if (await call() === false) return;
        dialog.returnValue = result;
        dialog.close(result);
      } catch (problem) {
        setText(error, problem.message);
      }
    };
    const save = async () => {
      const list = tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
      await post(`${path}/about`,
        { notes: notes.value, tags: list, ...(isEnded ? { name: name.value.trim() || run.name } : {}) });
      if (pinned.checked !== run.pinned) await post(`${path}/pin`, { pinned: pinned.checked });
    };
    const destroy = async () => {
      const text = `This also deletes all samples, events and alerts of ${run.label ?? run.name}. You cannot undo it.`;
      if (!(await confirmDialog("Delete this run?", text, "Delete", signal))) return false;
      return remove(path);
    };
    const buttons = [
      h("button", { hidden: !isEnded, onclick: () => attempt(destroy, "deleted") }, "Delete"),
      h("span.grow"),
      h("button", { onclick: () => dialog.close("") }, "Cancel"),
      h("button.strong", { type: "submit" }, "Save"),
    ];
    const fields = [["Name", name], ["Tags", tags], ["Notes", notes]].map(([text, field]) =>
      h("label.field", {}, text, field));
    const form = h("form", { onsubmit: (event) => {
      event.preventDefault();
      attempt(save, "changed");
    } }, fields, h("label", {}, pinned, "Pinned: the history limits do not delete it"), error,
      h("div.tools", {}, buttons));
    const dialog = h("dialog.edit", { "aria-labelledby": "edit-heading", onclose: () => {
      dialog.remove();
      resolve(dialog.returnValue || undefined);
    } }, h("h2", { id: "edit-heading" }, "Edit run"), form);
    signal.addEventListener("abort", () => dialog.close(""), { once: true });
    document.body.append(dialog);
    dialog.showModal();
  });
}
