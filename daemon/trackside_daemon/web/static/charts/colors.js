// Colors for canvases: those of the series, which also differ in lightness, and those of the page.

const style = () => getComputedStyle(document.documentElement);

export function seriesColor(index) {
  return style().getPropertyValue(`--s${(index % 8) + 1}`).trim();
}

export function themeColor(name) {
  return style().getPropertyValue(`--${name}`).trim();
}

const dark = matchMedia("(prefers-color-scheme: dark)");

// Calls `call` when the page switches between light and dark, until `signal` is aborted.
export function onThemeChange(call, signal) {
  dark.addEventListener("change", call, { signal });
  addEventListener("themechange", call, { signal });
}
