// The dialog that changes the name, tags, notes and pin of a run, or deletes it.

import { post, remove, runPath } from "/static/api.js";
import { confirmDialog, openDialog } from "/static/confirm.js";
import { h, ENDED } from "/static/dom.js";

// Resolves to "changed", "deleted" or "".
export function editRun(run, signal) {
  const path = runPath(run.id);
  const isEnded = ENDED.has(run.state);
  const name = h("input", { value: run.name, disabled: !isEnded,
    title: isEnded ? "" : "A run can be renamed when it has ended" });
  const tags = h("input", { value: run.tags.join(", "), placeholder: "baseline, paper" });
  const notes = h("textarea", { rows: 5 }, run.notes ?? "");
  const pinned = h("input", { type: "checkbox", checked: run.pinned });
  const submit = async () => {
    const list = tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
    const noted = notes.value === run.notes ? {} : { notes: notes.value, notes_before: run.notes };
    await post(`${path}/about`, { ...noted, tags: list, ...(isEnded ? { name: name.value.trim() || run.name } : {}) });
    if (pinned.checked !== run.pinned) await post(`${path}/pin`, { pinned: pinned.checked });
    dialog.root.close("changed");
  };
  const destroy = async () => {
    const text = `This also deletes all samples, events and alerts of ${run.label ?? run.name}. You cannot undo it.`;
    if (!(await confirmDialog("Delete this run?", text, "Delete", signal))) return;
    await remove(path);
    dialog.root.close("deleted");
  };
  const fields = [["Name", name], ["Tags", tags], ["Notes", notes]].map((parts) => h("label.field", {}, parts));
  const dialog = openDialog("Edit run", { action: "Save", submit,
    content: [fields, h("label", {}, pinned, "Pinned: the history limits do not delete it")] }, signal);
  dialog.cancel.before(h("button.needs-admin", { hidden: !isEnded, onclick: () => dialog.attempt(destroy) }, "Delete"),
    h("span.grow"));
  return new Promise((resolve) => { dialog.root.addEventListener("close", () => resolve(dialog.root.returnValue)); });
}
