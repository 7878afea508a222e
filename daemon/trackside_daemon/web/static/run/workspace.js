// How somebody has arranged the charts of runs of a name: what is pinned, the order, the sizes, the columns, and which
// sections are closed. It is kept in the browser, and travels in the address as `view` when it is shared.

import { h, setText, choices } from "/static/dom.js";

const PREFIX = "workspace:";
/** @type {Arrangement} */
const EMPTY = { pinned: [], order: [], full: [], own: {}, columns: 0, closed: [], opened: [] };

const NAMES = { 0: "Columns: auto", 2: "2 columns", 3: "3 columns", 4: "4 columns" };
const SHOWN_MS = 2500; // The time that a button shows its result.

export class Workspace {
  // `onChange()` is called after each change.
  constructor(name, shared, onChange) {
    this.name = name;
    this.onChange = onChange;
    const kept = { ...EMPTY, ...parsed(localStorage.getItem(PREFIX + name)), ...decode(shared) };
    this.pinned = kept.pinned;
    this.order = kept.order;
    this.full = kept.full;
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

  togglePin(key) {
    this.set({ pinned: toggled(this.pinned, key) });
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

function toggled(list, item) {
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
  const lists = ["pinned", "order", "full", "closed", "opened"].filter((name) =>
    Array.isArray(found[name]) && found[name].every((item) => typeof item === "string"));
  const result = Object.fromEntries(lists.map((name) => [name, found[name]]));
  if ([2, 3, 4].includes(found.columns)) result.columns = found.columns;
  if (found.own && typeof found.own === "object")
    result.own = Object.fromEntries(Object.entries(found.own).flatMap(ownSettings));
  return result;
}

function ownSettings([key, own]) {
  if (!own || typeof own !== "object") return [];
  const kinds = { log: "boolean", robust: "boolean", low: "number", high: "number" };
  return [[key, Object.fromEntries(Object.entries(own).filter(([name, value]) => typeof value === kinds[name]))]];
}

// Columns of the charts, and the address that shows them as they are arranged.
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
