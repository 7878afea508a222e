// The frame around all pages: routing, the live stream, errors, and the keys that work on every page outside of fields.
//
// A page is a module that exports `title` and `show(address)`. `show` returns `{ root, update?(overview), run?,
// updateRun?(run), close?() }`: the page's element, a function called with each overview, the id of the run whose
// newest values `updateRun` receives, and a cleanup function.
// An address is `{ parts, query, set(changes), signal }`. `set` changes the query without opening the page again.

import { MAX_ALERTS } from "/static/vocabulary.js";
import { isShown, noteAddress, setQuery, writeAddress } from "/static/address.js";
import { UnreachableError, storeToken, subscribe, withNetworkErrors, keepToken } from "/static/api.js";
import { openDialog } from "/static/confirm.js";
import { h, setText } from "/static/dom.js";
import { when } from "/static/format.js";

const HELP = { "/": "search", "j, k": "next, previous chart or run", x: "select the run",
  f: "the chart over the full width", p: "pin the chart to the top", "[, ]": "move the chart",
  "← →": "move the cursor in the chart; with shift the window", "+ −": "zoom the chart",
  n: "write a note at the cursor of the chart", Home: "show everything again",
  t: "switch between light and dark", "?": "this help" };

const ACTIONS = {
  "/": () => search(),
  j: () => focusChart(1),
  k: () => focusChart(-1),
  x: () => /** @type {HTMLElement} */ (document.activeElement.closest("td.box input"))?.click(),
  f: () => withChart((root) => root.chart?.setFull(!root.chart.isFull)),
  p: () => withChart((root) => root.pin?.click()),
  "[": () => withChart((root) => root.moveBy?.(-1)),
  "]": () => withChart((root) => root.moveBy?.(1)),
  t: () => toggleTheme(),
  "?": () => showHelp(),
};

function listenForKeys() {
  addEventListener("keydown", (event) => {
    const isTyping = event.target instanceof Element &&
      event.target.closest("input:not(.box input), select, textarea, dialog, [contenteditable]");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented ||
      !Object.hasOwn(ACTIONS, event.key)) return;
    event.preventDefault();
    ACTIONS[event.key]();
  });
}

function search() {
  const fields = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("main input[type=search]"));
  [...fields].find((field) => field.checkVisibility())?.focus();
}

function focusChart(direction) {
  const plots = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("main :is(td.box input, .chart .plot)")])
    .filter((plot) => plot.checkVisibility());
  const at = plots.findIndex((plot) => (plot.closest(".chart") ?? plot).contains(document.activeElement));
  const next = at < 0 ? plots.at(Math.min(0, direction)) : plots[at + direction];
  next?.focus({ preventScroll: true });
  (next?.closest(".chart") ?? next)?.scrollIntoView({ block: "center" });
}

// Calls with the chart that has the focus.
function withChart(call) {
  const root = document.activeElement?.closest(".chart");
  if (root) call(root);
}

function showHelp() {
  if (document.querySelector("dialog[open]")) return;
  const keys = h("dl.facts", {}, Object.entries(HELP).map(([key, text]) =>
    [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]));
  const { close, cancel } = openDialog("Keys", { content: keys, action: "Close", submit: () => close() },
    new AbortController().signal);
  cancel.remove();
}

const PAGES = { "": "overview", runs: "runs", compare: "compare", system: "system", alerts: "alerts",
  export: "export", fleet: "runs" };
const ZONE = new Intl.DateTimeFormat("en", { timeZoneName: "long" }).formatToParts()
  .find((part) => part.type === "timeZoneName").value;
const main = document.querySelector("main");
const live = document.getElementById("live");
const outage = document.getElementById("outage");
const firing = document.getElementById("firing");

let current = { close() {} }; // The open page's cleanup.
let page = /** @type {Page} */ ({});
let failed = false; // The page could not be shown (no connection or no access); the next event opens it again.
let newest; // { overview, at }: the last overview and its time of arrival.
let streamController = new AbortController();
let streamedRun; // The id of the run whose values are streamed.

async function open() {
  writeAddress();
  current.close();
  const ending = new AbortController();
  const parts = location.pathname.split("/").slice(1).map(decodeSegment);
  const opened = { close: () => ending.abort() };
  [current, page, failed] = [opened, {}, false];
  noteAddress();
  markCurrentPage(parts[0]);
  try {
    if (!Object.hasOwn(PAGES, parts[0])) throw new Error(`There is no page ${location.pathname}.`);
    const name = parts[0] === "runs" && parts[1] ? "run" : PAGES[parts[0]];
    const { title, show } = await withNetworkErrors(import(`/static/pages/${name}.js`));
    const query = new URLSearchParams(location.search);
    const shown = await show({ path: parts[0], parts: parts.slice(1), query, signal: ending.signal,
      set: (changes) => current === opened && setQuery(changes) });
    if (current !== opened) {
      shown.close?.();
      return;
    }
    opened.close = () => {
      ending.abort();
      shown.close?.();
    };
    page = shown;
    document.title = `${page.title ?? title} · trackside`;
    main.replaceChildren(page.root);
    if (newest) page.update?.(newest.overview);
    if (page.run !== streamedRun) listen(page.run);
  } catch (problem) {
    if (current !== opened) return;
    showFailure(problem);
    if (problem.status === 401) listen(); // The stream may still be permitted.
  }
}

function decodeSegment(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // As in /runs/100%.
  }
}

// Subscribes to the stream while the tab is visible, since a browser opens few connections per host.
function listen(run = streamedRun) {
  streamController.abort();
  streamController = new AbortController();
  streamedRun = run;
  if (!document.hidden) subscribe(run, onEvent, onBroken, streamController.signal);
}

function onEvent(event, data) {
  if (event === "run") page.updateRun?.(data);
  if (event !== "overview") return;
  document.getElementById("fleet").hidden = !data.fleet;
  if (newest && newest.overview.version !== data.version) location.reload();
  newest = { overview: data, at: Date.now() / 1000 };
  setText(live, `Live, ${data.host.name ?? "this machine"}`);
  live.title = `Times are those of ${ZONE}`;
  live.className = "";
  showOutage("");
  const count = data.alerts.filter((alert) => alert.severity !== "info" && !alert.silenced).length;
  setText(firing, count >= MAX_ALERTS ? `${MAX_ALERTS}+` : String(count || ""));
  firing.hidden = !count;
  if (failed) open();
  else page.update?.(data);
}

function onBroken(problem) {
  if (problem.status === 401) {
    if (!failed) showFailure(problem);
    return;
  }
  live.className = "bad";
  setText(live, "Not live");
  const since = newest ? `since ${when(newest.at)}` : "yet";
  showOutage(`No updates ${since}. Retrying. ${problem.message.replace(/\.?$/, ".")
    .replace(/^./, (first) => first.toUpperCase())}`);
}

// Shows why the page is out of date; an empty text hides the notice.
function showOutage(text) {
  setText(outage, text);
  outage.hidden = !text;
  main.classList.toggle("old", Boolean(text));
}

// Closes the page and shows what went wrong in its place.
function showFailure(problem) {
  current.close();
  [current, page] = [{ close() {} }, {}];
  failed = problem.status === 401 || problem instanceof UnreachableError;
  document.title = "trackside";
  main.replaceChildren(explanation(problem));
  if (problem.status !== 401) return;
  showOutage("");
  live.className = "bad";
  setText(live, "Not allowed");
}

// An error as a message for the user.
function explanation(problem) {
  if (problem.reason !== "token") {
    const way = problem instanceof UnreachableError ? [] : [h("p", {}, "Go on with ",
      h("a", { href: "/runs" }, "All runs"), " or the ", h("a", { href: "/" }, "Overview"), ".")];
    return h("section.notice", { role: "alert" }, h("h1", {}, "This page cannot be shown"), h("p", {}, problem.message),
      ...way);
  }
  return tokenForm(problem, Boolean(newest), useToken);
}

function markCurrentPage(first) {
  for (const link of document.querySelectorAll("nav a")) {
    link.removeAttribute("aria-current");
    if (link.getAttribute("href") === `/${first}`) link.setAttribute("aria-current", "page");
  }
}

// Opens one of the dashboard's addresses without loading the frame again.
function navigate(address) {
  writeAddress();
  history.pushState(null, "", address);
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
  openAgain();
}

// Opens the current address. After a refusal it also reconnects at once instead of waiting for the next retry.
function openAgain() {
  if (failed) listen();
  open();
}

addEventListener("click", (event) => {
  const link = event.target instanceof Element && event.target.closest("a");
  const plain = !event.defaultPrevented && event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey &&
    !event.altKey;
  if (!link?.href || !plain || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (!Object.hasOwn(PAGES, link.pathname.split("/")[1]) || (link.hash && link.pathname === location.pathname)) return;
  event.preventDefault();
  navigate(link.href);
});
addEventListener("popstate", () => {
  if (!isShown()) openAgain();
});
function useToken() {
  newest = undefined; // It belonged to another token.
  listen();
  open();
}

addEventListener("hashchange", () => {
  if (storeToken()) useToken();
});
addEventListener("pagehide", writeAddress);
addEventListener("online", () => listen());
document.addEventListener("visibilitychange", () => {
  setText(live, document.hidden ? "Paused" : "Connecting…");
  listen();
});
document.querySelector("#theme").addEventListener("click", toggleTheme);
document.querySelector("#keys").addEventListener("click", showHelp);
listenForKeys();
storeToken();
listen();
open();

// Returns the notice. `wasOpen`: the page was shown with an earlier token. `onToken` is called with a new one.
function tokenForm(problem, wasOpen, onToken) {
  const wrong = wasOpen ? "The daemon has a new token" : "The token is wrong";
  const field = h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const submit = (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    keepToken(field.value);
    onToken();
  };
  return h("section.notice", { role: "alert" },
    h("h1", {}, sessionStorage.getItem("token") ? wrong : "The token is missing"),
    h("form.tools", { onsubmit: submit }, h("label", { for: "token" }, "Token, or a link with it "), field,
      h("button.strong", { type: "submit" }, "Open")),
    h("p", {}, "In a terminal on the daemon's machine, ", h("code", {}, "trackside token"), " prints the token, and ",
      h("code", {}, "trackside open"), " a link with it."),
    h("p.quiet", {}, `The daemon's answer: ${problem.message}.`));
}

const ofSystem = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

// Switches to the other theme. The one that the system has is not stored, so that the page follows it again.
function toggleTheme() {
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
