// Colors for canvases: those of the series, which also differ in lightness, and those of the page.

const known = new Map();

export const COLORS = 12;
/** @type {[string, number[]][]} */
const DASHES = [["solid", []], ["dashed", [6, 4]], ["dotted", [2, 3]]];

// The name of the color of a line.
export const colorName = (index) => `s${(index % COLORS) + 1}`;

export const seriesColor = (index) => themeColor(colorName(index));

// How a line is drawn: [the name of its style, its dashes]; with more lines than colors, they differ in that.
export const dashOf = (index) => DASHES[Math.floor(index / COLORS) % DASHES.length];

// Gives a swatch the look of a line.
export function paintSwatch(swatch, index) {
  swatch.style.borderTopColor = `var(--${colorName(index)})`;
  [swatch.style.borderTopStyle] = dashOf(index);
}

export function themeColor(name) {
  if (!known.has(name))
    known.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return known.get(name);
}

const dark = matchMedia("(prefers-color-scheme: dark)");

onThemeChange(() => known.clear());

// Calls `call` when the page switches between light and dark, until `signal` is aborted.
export function onThemeChange(call, signal = undefined) {
  dark.addEventListener("change", call, { signal });
  addEventListener("themechange", call, { signal });
}
