// The address of the shown page: what is chosen on it (zoom, filters, sorting, columns) is in its query.

const WRITE_MS = 250; // Browsers limit how often a page may change its address.

let shownAddress; // The address as it was last written,
let pendingUrl; // and the one to write next.
let writeTimer;

// Changes parts of the query; a part without a value goes.
export function setQuery(changes) {
  pendingUrl ??= new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    pendingUrl.searchParams.delete(name);
    for (const part of [value].flat()) {
      if (part !== undefined && part !== null && part !== "") pendingUrl.searchParams.append(name, part);
    }
  }
  if (!writeTimer) writeAddress();
}

// Writes the pending address at once; changes within WRITE_MS are collected and written afterwards.
export function writeAddress() {
  clearTimeout(writeTimer);
  writeTimer = pendingUrl && setTimeout(writeAddress, WRITE_MS);
  if (!pendingUrl) return;
  history.replaceState(history.state, "", pendingUrl);
  noteAddress();
  pendingUrl = undefined;
}

// Notes that the page of the present address is shown.
export function noteAddress() {
  shownAddress = location.pathname + location.search;
}

// Returns a word of an address if it is one of the names, and otherwise what stands for none.
export function oneOf(names, word, none) {
  return Object.hasOwn(names, word) ? word : none;
}

// Returns whether only the fragment of the address has changed; otherwise what was to be written is of another page.
export function isShown() {
  if (location.pathname + location.search === shownAddress) return true;
  pendingUrl = undefined;
  return false;
}
