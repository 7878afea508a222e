// Columns of the charts, and the address that shows them as they are arranged.

import { h, setText, choices } from "/static/dom.js";

const NAMES = { 0: "Columns: auto", 2: "2 columns", 3: "3 columns", 4: "4 columns" };
const SHOWN_MS = 2500; // The time that a button shows its result.

export function workspaceTools(workspace) {
  const options = choices(NAMES, workspace.columns);
  const columns = h("select",
    { "aria-label": "Columns", onchange: () => workspace.set({ columns: Number(columns.value) }) }, options);
  const share = h("button", { title: "Copies the address with the zoom, the filter and the arrangement",
    onclick: () => copy() }, "Copy link");

  async function copy() {
    const address = new URL(location.href);
    address.searchParams.set("view", workspace.encode());
    try {
      await navigator.clipboard.writeText(address.href);
      setText(share, "Copied");
    } catch {
      history.replaceState(history.state, "", address); // Without the permission, the address bar has it.
      setText(share, "In the address bar");
    }
    setTimeout(() => setText(share, "Copy link"), SHOWN_MS);
  }

  return h("span.tools.inner", {}, columns, share);
}
