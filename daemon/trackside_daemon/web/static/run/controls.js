// What a run's charts show, and how; kept in the address.

import { oneOf } from "/static/address.js";
import { readSmoothing, smoothingControl, smoothingQuery } from "/static/charts/smoothing_control.js";
import { h, choices, checkbox, rerender } from "/static/dom.js";
import { plural } from "/static/format.js";
import { axisOf, axisSelect } from "/static/run/x_axis.js";

const RANKS = { lowest: "Lowest rank", all: "All ranks as lines", band: "All ranks as a band" };

// Returns the selection: { by, smooth, log, robust, ranks, attempt, filter, hide, from, to, root, zoom(from, to),
// update(run), updateMarks(marks) }. `hide` are the kinds of marks that are not shown. `onChange` receives the settings
// that changed.
export function controls(address, run, onChange) {
  const read = (name) => address.query.get(name) ?? undefined;
  const numeric = (name) =>
    (Number.isFinite(Number.parseFloat(read(name))) ? Number.parseFloat(read(name)) : undefined);
  const selection = /** @type {RunSelection} */ ({
    by: axisOf(read("by")),
    smooth: readSmoothing(address.query),
    log: read("log") === "1",
    robust: read("robust") === "1",
    ranks: oneOf(RANKS, read("ranks"), "lowest"),
    attempt: Number.isInteger(numeric("attempt")) ? numeric("attempt") : undefined,
    filter: read("filter") ?? "",
    hide: address.query.getAll("hide"),
    from: numeric("from"),
    to: numeric("to"),
  });
  const set = (changes) => {
    Object.assign(selection, changes);
    reset.hidden = selection.from === undefined && selection.to === undefined;
    onChange(changes);
    address.set(toQuery(selection));
  };
  const reset = h("button.strong", { hidden: selection.from === undefined,
    onclick: () => set({ from: undefined, to: undefined }) }, "Reset zoom");
  selection.zoom = (from, to) => set({ from, to });
  const axis = axisSelect(selection, (by) => set({ by, from: undefined, to: undefined }));
  const smoothing = smoothingControl(selection.smooth, (smooth) => set({ smooth }));
  const attempt = attemptSelect(selection, set);
  const rankOptions = choices(RANKS, selection.ranks);
  const ranks = h("select", { onchange: () => set({ ranks: ranks.value }) }, ...rankOptions);
  const ranksLabel = h("label", {}, "Ranks", ranks);
  const boxes = [checkbox("log", "Log scale", selection, set), checkbox("robust", "Ignore outliers", selection, set)];
  const marks = markToggles(selection, set);
  selection.tools = h("span.joined-tools");
  const all = [axis.root, smoothing.root, boxes, ranksLabel, attempt.root, marks.root, reset, selection.tools,
    filterField(selection, set)];
  selection.root = h("div.tools.run-tools", { role: "group", "aria-label": "Chart settings" }, all);
  // Headings of sections stick below the toolbar, whose height depends on the width.
  const sized = new ResizeObserver(() =>
    document.documentElement.style.setProperty("--tools", `${selection.root.offsetHeight}px`));
  sized.observe(selection.root);
  address.signal.addEventListener("abort", () => sized.disconnect());
  selection.update = (now) => {
    axis.update(now);
    smoothing.update(now.metrics.reduce((most, item) => Math.max(most, item.last_step ?? 0), 0));
    ranksLabel.hidden = now.metrics.every((item) => item.rank === now.metrics[0].rank);
    attempt.update(now.attempt_list.map((item) => item.attempt));
  };
  selection.updateMarks = marks.update;
  return selection;
}

function toQuery(/** @type {RunSelection} */ { by, smooth, log, robust, ranks, attempt, filter: text, hide, from,
  to }) {
  const flags = { log: log ? "1" : "", robust: robust ? "1" : "" };
  return { by: by === "step" ? "" : by, ...smoothingQuery(smooth), ...flags, ranks: ranks === "lowest" ? "" : ranks,
    attempt, filter: text, hide, from, to };
}

// The legend of the marks: a switch for each kind.
function markToggles(selection, set) {
  const root = h("span.mark-kinds", { role: "group", "aria-label": "Marks", hidden: true });
  const update = (marks) => {
    const counts = new Map();
    for (const { kind } of marks) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    root.hidden = !counts.size;
    rerender(root, JSON.stringify([...counts]), () => [...counts].map(([kind, count]) => toggle(kind, count)));
  };
  const toggle = (kind, count) => {
    const text = `${kind === "alert" ? "▼" : "■"} ${kind.replaceAll("_", " ")} ${count}`;
    const button = h("button.tag", { "aria-pressed": String(!selection.hide.includes(kind)),
      title: `Show or hide the marks of ${kind}` }, text);
    button.addEventListener("click", () => {
      const hide = selection.hide.includes(kind)
        ? selection.hide.filter((item) => item !== kind) : [...selection.hide, kind];
      set({ hide });
      button.setAttribute("aria-pressed", String(!hide.includes(kind)));
    });
    return button;
  };
  return { root, update };
}

function attemptSelect(selection, set) {
  const list = h("select", { onchange: () => set({ attempt: list.value === "" ? undefined : Number(list.value) }) });
  const root = h("label", {}, "Attempt", list);
  const update = (numbers) => {
    root.hidden = numbers.length < 2;
    if (list.options.length === numbers.length + 1) return;
    const options = numbers.map((item) => h("option", { value: item }, String(item)));
    list.replaceChildren(h("option", { value: "" }, `All ${plural(numbers.length, "attempt")}`), ...options);
    list.value = selection.attempt ?? "";
  };
  return { root, update };
}

function filterField(selection, set) {
  const text = h("input", { type: "search", placeholder: "loss|acc -grad /^eval/", value: selection.filter,
    oninput: () => set({ filter: text.value }) });
  return h("label.run-filter", {}, "Keys", text);
}
