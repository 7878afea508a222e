// The theme: that of the system, unless the user has chosen light or dark, which this browser then keeps.

const NAMES = ["light", "dark"];
const KEY = "theme";

function chosen() {
  const name = localStorage.getItem(KEY);
  return NAMES.includes(name) ? name : undefined;
}

function isDark() {
  return (chosen() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}

// Applies the chosen theme; call it before anything is shown.
function applyTheme() {
  const name = chosen();
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  dispatchEvent(new Event("themechange"));
}

// Switches to the other theme. The one that the system has is not stored, so that the page follows it again.
export function toggleTheme() {
  const next = isDark() ? "light" : "dark";
  const ofSystem = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  if (next === ofSystem) localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
  applyTheme();
}
