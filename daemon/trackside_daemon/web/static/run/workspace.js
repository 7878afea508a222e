// What the charts of a run show, and how, kept in the address. How somebody has arranged the charts of runs of a name,
// what is pinned, the order, the sizes, the columns, and which sections are closed, is kept in the browser, and travels
// in the address as `view` when it is shared.

import { h, choices, checkbox, rerender } from "/static/dom.js";
import { oneOf } from "/static/address.js";
import { zoomReset } from "/static/charts/interaction.js";
import { readSmoothing, smoothingControl, smoothingQuery } from "/static/charts/smoothing.js";
import { plural } from "/static/format.js";
import { axisOf, axisSelect } from "/static/run/x_axis.js";

const RANKS = { lowest: "Lowest rank", all: "All ranks as lines", band: "All ranks as a band" };

// Returns the selection: { by, smooth, log, robust, ranks, attempt, filter, hide, from, to, root, zoom(from, to),
// update(run), updateMarks(marks) }. `hide` are the kinds of marks that are not shown. `onChange` receives the settings
// that changed. `robust`: outliers are ignored unless the user wants them.
export function controls(address, onChange, robust = false) {
  const read = (name) => address.query.get(name) ?? undefined;
  const numeric = (name) =>
    (Number.isFinite(Number.parseFloat(read(name))) ? Number.parseFloat(read(name)) : undefined);
  const selection = /** @type {RunSelection} */ ({
    by: axisOf(read("by")),
    smooth: readSmoothing(address.query),
    log: read("log") === "1",
    robust: (read("robust") ?? String(Number(robust))) === "1",
    ranks: oneOf(RANKS, read("ranks"), "lowest"),
    attempt: Number.isInteger(numeric("attempt")) ? numeric("attempt") : undefined,
    filter: read("filter") ?? "",
    hide: address.query.getAll("hide"),
    from: numeric("from"),
    to: numeric("to"),
  });
  const set = (changes) => {
    Object.assign(selection, changes);
    reset.update(selection.from, selection.to);
    onChange(changes);
    address.set(toQuery(selection, robust));
  };
  const reset = zoomReset(() => set({ from: undefined, to: undefined }));
  reset.update(selection.from, selection.to);
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
  const all = [axis.root, smoothing.root, boxes, ranksLabel, attempt.root, reset.button, selection.tools,
    filterField(selection, set)];
  selection.marks = marks.root;
  selection.root = h("div.tools.run-tools", { role: "group", "aria-label": "Chart settings" }, all);
  // Headings of sections stick below the toolbar, whose height depends on the width.
  const sized = new ResizeObserver(() =>
    document.documentElement.style.setProperty("--tools", `${selection.root.offsetHeight}px`));
  sized.observe(selection.root);
  address.signal.addEventListener("abort", () => sized.disconnect());
  selection.update = (now) => {
    axis.update(now);
    smoothing.update(now.metrics.reduce((most, item) => Math.max(most, item.last_step ?? 0), 0));
    ranksLabel.hidden = new Set(now.metrics.map((item) => item.rank)).size < 2;
    attempt.update(now.attempt_list.map((item) => item.attempt));
  };
  selection.updateMarks = marks.update;
  return selection;
}

function toQuery(/** @type {RunSelection} */ { by, smooth, log, robust, ranks, attempt, filter: text, hide, from,
  to }, byDefault) {
  const flags = { log: log ? "1" : "", robust: robust === byDefault ? "" : Number(robust) };
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
      const hide = toggled(selection.hide, kind);
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

const PREFIX = "workspace:";
/** @type {Arrangement} */
const EMPTY = { pinned: [], order: [], full: [], hidden: [], own: {}, columns: 0, closed: [], opened: [] };

const NAMES = { 0: "Columns: auto", 2: "2 columns", 3: "3 columns", 4: "4 columns" };

export class Workspace {
  // `onChange()` is called after each change.
  constructor(name, shared, onChange) {
    this.name = name;
    this.onChange = onChange;
    const kept = { ...EMPTY, ...parsed(localStorage.getItem(PREFIX + name)), ...decode(shared) };
    this.pinned = kept.pinned;
    this.order = kept.order;
    this.full = kept.full;
    this.hidden = kept.hidden;
    this.own = kept.own;
    this.columns = kept.columns;
    this.closed = kept.closed;
    this.opened = kept.opened;
  }

  set(changes) {
    Object.assign(this, changes);
    localStorage.setItem(PREFIX + this.name, JSON.stringify(this.#state()));
    this.onChange();
  }

  toggleSection(name, open, byDefault) {
    const without = (list) => list.filter((item) => item !== name);
    if (open === byDefault) this.set({ closed: without(this.closed), opened: without(this.opened) });
    else this.set(open ? { opened: [...without(this.opened), name] } : { closed: [...without(this.closed), name] });
  }

  isOpen(name, byDefault) {
    return this.opened.includes(name) || (byDefault && !this.closed.includes(name));
  }

  // Moves a key in front of another one, or behind it, among the keys as they are shown.
  move(key, other, keys, behind) {
    const order = [...keys, ...this.order.filter((item) => !keys.includes(item))].filter((item) => item !== key);
    order.splice(order.indexOf(other) + (behind ? 1 : 0), 0, key);
    const pinned = order.filter((item) => this.pinned.includes(item));
    this.set({ order, pinned });
  }

  // Sorts keys: those that have a place first, in their order.
  sort(keys) {
    const place = new Map(this.order.map((key, index) => [key, index]));
    return keys.map((key, index) => [place.get(key) ?? this.order.length + index, key]).sort(([a], [b]) => a - b)
      .map(([, key]) => key);
  }

  // Returns the arrangement as a text for an address.
  encode() {
    return btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(this.#state())))).replaceAll("+", "-")
      .replaceAll("/", "_").replace(/=+$/, "");
  }

  #state() {
    return Object.fromEntries(Object.keys(EMPTY).map((name) => [name, this[name]]));
  }
}

export function toggled(list, item) {
  return list.includes(item) ? list.filter((other) => other !== item) : [...list, item];
}

function decode(text) {
  if (!text) return {};
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")),
      (character) => character.charCodeAt(0));
    return parsed(new TextDecoder().decode(bytes));
  } catch {
    return {}; // A link that was cut off shows the charts as they are by default.
  }
}

// Returns only what has the type that is expected, since a link may come from anybody.
function parsed(text) {
  let found = {};
  try {
    found = JSON.parse(text ?? "{}") ?? {};
  } catch {
    return {};
  }
  const lists = ["pinned", "order", "full", "hidden", "closed", "opened"].filter((name) =>
    Array.isArray(found[name]) && found[name].every((item) => typeof item === "string"));
  const result = Object.fromEntries(lists.map((name) => [name, found[name]]));
  if ([2, 3, 4].includes(found.columns)) result.columns = found.columns;
  if (found.own && typeof found.own === "object")
    result.own = Object.fromEntries(Object.entries(found.own).flatMap(ownSettings));
  return result;
}

function ownSettings([key, own]) {
  if (!own || typeof own !== "object") return [];
  const kinds = { log: "boolean", robust: "boolean", second: "string", formula: "string", low: "number",
    high: "number" };
  return [[key, Object.fromEntries(Object.entries(own).filter(([name, value]) => typeof value === kinds[name]))]];
}

// The columns of the charts.
export function columnSelect(workspace) {
  const options = choices(NAMES, workspace.columns);
  return h("select", { "aria-label": "Columns",
    onchange: ({ target }) => workspace.set({ columns: Number(target.value) }) }, options);
}
