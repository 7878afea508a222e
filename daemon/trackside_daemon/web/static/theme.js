// The theme: that of the system, unless the user has chosen light or dark, which this browser then keeps.

const ofSystem = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

// Switches to the other theme. The one that the system has is not stored, so that the page follows it again.
export function toggleTheme() {
  const { dataset } = document.documentElement;
  const next = (dataset.theme ?? ofSystem()) === "dark" ? "light" : "dark";
  if (next === ofSystem()) {
    localStorage.removeItem("theme");
    delete dataset.theme;
  } else {
    localStorage.setItem("theme", next);
    dataset.theme = next;
  }
  dispatchEvent(new Event("themechange"));
}
