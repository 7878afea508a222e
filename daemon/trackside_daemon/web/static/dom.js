// Elements from code. What comes from outside is only ever text.

const SVG = "http://www.w3.org/2000/svg";

// An element: h("a.quiet", { href, onclick }, "text", element, …). A property that is a function is a listener; `undefined`,
// `null` and `false` are left out, as children and as properties.
export function h(what, properties = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElement(tag), classes, properties, children);
}

// The same for SVG.
export function svg(what, properties = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElementNS(SVG, tag), classes, properties, children);
}

function filled(element, classes, properties, children) {
  element.classList.add(...classes);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((one) => one !== undefined && one !== null && one !== false));
  return element;
}

// Keeps the rows of a list in step with items: those that are there stay, in the order of the items. `make(item)` makes a
// row, an element, and gives it a method `told(item)`.
export function rows(parent, items, key, make) {
  const old = parent.rowsByKey ?? new Map();
  const now = new Map(items.map((item) => [key(item), old.get(key(item)) ?? make(item)]));
  // First of all, or those behind it would be moved, and lose the focus.
  for (const [name, row] of old) if (!now.has(name)) row.remove();
  items.forEach((item, place) => {
    const row = now.get(key(item));
    if (parent.children[place] !== row) parent.insertBefore(row, parent.children[place] ?? null);
    row.told?.(item);
  });
  parent.rowsByKey = now;
}

// Sets a text only when it is another.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A small line of numbers, for a screen reader a text. Gaps are where there is no finite number.
export function sparkline(values, label, width = 120, height = 28) {
  const finite = values.filter(Number.isFinite);
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  const x = (place) => (place / Math.max(1, values.length - 1)) * (width - 2) + 1;
  const y = (value) => height - 2 - ((value - low) / span) * (height - 4);
  let pen = "M";
  const path = values.map((value, place) => {
    if (!Number.isFinite(value)) {
      pen = "M";
      return "";
    }
    const piece = `${pen}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
    return piece;
  });
  return svg("svg.spark", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, svg("path", { d: path.join("") }));
}
