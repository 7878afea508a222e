// Applies the theme that the user has chosen before the page is drawn.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is off: the page follows the system.
}
