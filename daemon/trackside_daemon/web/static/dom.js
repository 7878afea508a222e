// Creation of elements, and small components with a method `update`. Values from outside are only inserted as text.

import * as words from "/static/vocabulary.js";

const SVG = "http://www.w3.org/2000/svg";

// Returns an element: h("a.quiet", { href, onclick }, "text", element, …). A function becomes a listener, and a button
// submits nothing unless its type says so. `undefined`, `null` and `false` are ignored, as children and as properties.
export function h(selector, properties = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const all = tag === "button" ? { type: "button", ...properties } : properties;
  return applyProperties(document.createElement(tag), classes, all, children);
}

// Returns an SVG element; the arguments are those of `h`.
export function svg(selector, properties = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  return applyProperties(document.createElementNS(SVG, tag), classes, properties, children);
}

function applyProperties(element, classes, properties, children) {
  element.classList.add(...classes);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity)
    .filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

// Makes the rows of a list match the items, in their order, and keeps existing rows. `make(item)` returns a new row, an
// element with an optional method `update(item)`.
export function syncRows(parent, items, key, make) {
  const previous = parent.rowsByKey ?? new Map();
  const current = new Map(items.map((item) => [key(item), previous.get(key(item)) ?? make(item)]));
  // Remove old rows first, unless they have moved elsewhere: otherwise later rows are moved, and lose the focus.
  for (const [name, row] of previous) if (!current.has(name) && row.parentNode === parent) row.remove();
  items.forEach((item, index) => {
    const row = current.get(key(item));
    if (parent.children[index] !== row) parent.insertBefore(row, parent.children[index] ?? null);
    row.update?.(item);
  });
  parent.rowsByKey = current;
}

// Sets an element's text if it differs.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const TITLE_END = 18; // Characters.

// Sets a title in one line; a long one is cut in its middle, since names differ at their ends.
export function setTitle(element, text) {
  if (element.textContent === text) return;
  const parts = text.length < 1.5 * TITLE_END ? [text]
    : [text.slice(0, -TITLE_END), text.slice(-TITLE_END)].map((part) => h("span", {}, part));
  element.replaceChildren(...parts);
  element.classList.toggle("cut", parts.length > 1);
  element.setAttribute("aria-label", text);
  element.title = text;
}

// Returns a small line chart with a text for screen readers. Values that are not finite leave gaps.
export function sparkline(values, label, width = 120, height = 28) {
  const finite = values.filter(Number.isFinite);
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  const x = (index) => (index / Math.max(1, values.length - 1)) * (width - 2) + 1;
  const y = (value) => height - 2 - ((value - low) / span) * (height - 4);
  const path = values.map((value, index) => (Number.isFinite(value)
    ? `${Number.isFinite(values[index - 1]) ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}` : ""));
  return svg("svg.spark", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    svg("path", { d: path.join("") }));
}

const MARKS = {
  ...{ starting: "◔", running: "●", stalled: "‖", finished: "✓", stopped: "■", failed: "✕", lost: "?" },
  ...{ critical: "◆", warning: "▲", info: "○", down: "✕" },
};
export const ENDED = new Set(words.ENDED);

// Returns a state or severity with a mark of its own, so that color is not needed. `text` replaces the word.
export function badge(word, text) {
  const mark = h("span", { "aria-hidden": "true" });
  const label = h("span");
  const element = h("span.badge", {}, mark, " ", label);
  element.update = (state, shownText = state) => {
    element.className = `badge ${state ?? ""}`;
    element.hidden = !state;
    setText(mark, MARKS[state] ?? "·");
    setText(label, shownText ?? "");
  };
  element.update(word, text);
  return element;
}

// Returns a bar for a ratio, which has a text next to it. `levels` are the ratios from which it warns and is bad.
export function bar() {
  const fill = h("span");
  const element = h("span.bar", { "aria-hidden": "true" }, fill);
  element.update = (ratio, levels) => {
    element.hidden = !Number.isFinite(ratio);
    const width = `${(100 * Math.min(1, Math.max(0, ratio))).toFixed(1)}%`;
    if (!element.hidden && fill.style.width !== width) fill.style.width = width;
    const level = levels?.findLastIndex((from) => ratio >= from) ?? -1;
    fill.className = ["", "high", "full"][level + 1];
  };
  return element;
}

// Returns a definition list of `[name, text or element, ratio, levels]`; entries without a text are hidden.
export function facts() {
  const element = h("dl.facts");
  const shown = new Map();
  element.update = (entries) => {
    for (const [name, text, ratio, levels] of entries) {
      if (!shown.has(name)) {
        const row = { term: h("dt", {}, name), value: h("span"), bar: bar() };
        row.detail = h("dd", {}, row.value, row.bar);
        shown.set(name, row);
        element.append(row.term, row.detail);
      }
      const row = shown.get(name);
      row.term.hidden = row.detail.hidden = text === undefined || text === "";
      if (!(text instanceof Node)) setText(row.value, text ?? "");
      else if (row.value.firstChild !== text) row.value.replaceChildren(text);
      row.bar.update(ratio, levels);
    }
  };
  return element;
}

// Returns a section that can be folded; `notes` stand beside its heading.
export function fold(title, properties, notes, ...content) {
  const head = h("summary", {}, h("h2", {}, title), notes);
  return h("details.run-section", { open: true, ...properties }, head, content);
}

// Returns a box whose content may be wider than the page; the keyboard scrolls it.
export function scrollable(label, ...content) {
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, content);
}

// Returns a table. Each column is its heading, or [heading, classes]; `rows` are its rows, or the body that has them.
export function table(columns, rows, selector = "table", properties = {}) {
  const cells = columns.map((column) => {
    const [heading, kind] = [column].flat();
    return h(kind ? `th.${kind}` : "th", { scope: "col" }, heading);
  });
  const body = rows instanceof Element ? rows : h("tbody", {}, rows);
  return h(selector, properties, h("thead", {}, h("tr", {}, cells)), body);
}

// Returns a row whose cells, of these kinds, show what `contents(item)` has for each: a text, or an element that stays.
export function liveRow(kinds, contents) {
  const cells = kinds.map((kind) => h(kind, kind.startsWith("th") ? { scope: "row" } : {}));
  const row = h("tr", {}, cells);
  row.update = (item) => contents(item, row).forEach((content, index) => {
    if (!(content instanceof Node)) setText(cells[index], String(content ?? ""));
    else if (cells[index].firstChild !== content) cells[index].replaceChildren(content);
  });
  return row;
}

// A heading that only screen readers read.
export const unseen = (text) => h("span.unseen", {}, text);

// Returns a checkbox for a value of `values`; `onChange` receives the changed value by its name.
export function checkbox(name, text, values, onChange) {
  const change = () => onChange({ [name]: box.checked });
  const box = h("input", { type: "checkbox", checked: values[name], onchange: change });
  return h("label", {}, box, text);
}

// Returns the options of a select: texts by their value, of which one is chosen.
export function choices(texts, chosen) {
  return Object.entries(texts).map(([value, text]) => h("option", { value, selected: value === String(chosen) }, text));
}

// Makes the options of a select these values, with their texts, and chooses one.
export function fillSelect(select, values, textOf, chosen) {
  rerender(select, JSON.stringify(values), () => values.map((value) => h("option", { value }, textOf(value))));
  select.value = chosen;
}

// Returns a text as children, with what stands between backticks as code.
export function withCode(text) {
  const parts = text.split("`");
  return parts.length % 2 ? parts.map((part, index) => (index % 2 ? h("code", {}, part) : part)) : [text];
}

// Replaces an element's content when `text`, the data that it is made from, differs.
export function rerender(element, text, make) {
  if (element.madeOf === text) return;
  element.madeOf = text;
  element.replaceChildren(...[make()].flat());
}

// Downloads a blob as a file.
export function download(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// Strokes in the color of the text.
const ICONS = {
  full: "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4",
  png: "M8 2v8M4.5 6.5 8 10l3.5-3.5M2 13.5h12",
  settings: "M2 4.5h7M13 4.5h1M2 11.5h1M7 11.5h7M11 2.5v4M5 9.5v4",
  hide: "M4 4l8 8M12 4l-8 8",
  pin: "M5.5 2h5l-.8 4.5L12 9H4l2.3-2.5zM8 9v5",
  drag: "M5.5 3.5h.01M10.5 3.5h.01M5.5 8h.01M10.5 8h.01M5.5 12.5h.01M10.5 12.5h.01",
};

// Returns a button that shows only an icon, with its label for screen readers and as a title, and the role it needs.
export function icon(name, label, onclick, role = "read") {
  const picture = svg("svg.picture", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
  return h(`button.icon.needs-${role}`, { "aria-label": label, title: label, onclick }, picture);
}
