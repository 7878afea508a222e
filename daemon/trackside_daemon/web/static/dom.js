// Creation of elements. Values from outside are only ever inserted as text.

const SVG = "http://www.w3.org/2000/svg";

// Returns an element: h("a.quiet", { href, onclick }, "text", element, …). A property that is a function becomes a listener.
// `undefined`, `null` and `false` are ignored, as children and as properties.
export function h(selector, properties = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  return applyProperties(document.createElement(tag), classes, properties, children);
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
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

// Makes the rows of a list match the items, in their order, and keeps existing rows. `make(item)` returns a new row, an
// element with an optional method `update(item)`.
export function syncRows(parent, items, key, make) {
  const previous = parent.rowsByKey ?? new Map();
  const current = new Map(items.map((item) => [key(item), previous.get(key(item)) ?? make(item)]));
  // Remove old rows first: otherwise later rows are moved, and lose the focus.
  for (const [name, row] of previous) if (!current.has(name) && row.parentNode === parent) row.remove(); // It may have moved.
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

// Returns a small line chart with a text for screen readers. Values that are not finite leave gaps.
export function sparkline(values, label, width = 120, height = 28) {
  const finite = values.filter(Number.isFinite);
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  const x = (index) => (index / Math.max(1, values.length - 1)) * (width - 2) + 1;
  const y = (value) => height - 2 - ((value - low) / span) * (height - 4);
  let pen = "M";
  const path = values.map((value, index) => {
    if (!Number.isFinite(value)) {
      pen = "M";
      return "";
    }
    const piece = `${pen}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
    return piece;
  });
  return svg("svg.spark", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, svg("path", { d: path.join("") }));
}
