// The colours of series, which differ in lightness too, and those of the page, as canvases need them.

const style = () => getComputedStyle(document.documentElement);

export function color(place) {
  return style().getPropertyValue(`--s${(place % 8) + 1}`).trim();
}

export function named(name) {
  return style().getPropertyValue(`--${name}`).trim();
}

const dark = matchMedia("(prefers-color-scheme: dark)");

// Calls when the system changes between light and dark, until the signal.
export function whenChanged(call, signal) {
  dark.addEventListener("change", call, { signal });
}
