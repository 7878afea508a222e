// The frame round all pages: which page an address means, what is live, and what goes wrong.
//
// A page is a module with `title` and `show(place)`, which returns `{ root, told?(overview), run?, heard?(run), left?() }`:
// its element; what is told the overview each second; the run whose newest values it hears too; what ends it.
// A place is an address: `{ parts, query, set(changes), signal }`; `set` changes the query without a new page.

import { Unreachable, hear, reached, takeToken } from "/static/api.js";
import { h, say } from "/static/dom.js";
import { when } from "/static/words.js";

const PAGES = { "": "overview", runs: "run", compare: "compare", system: "system", alerts: "alerts", export: "export" };
const MOST_ALERTS = 200; // So many does the overview tell.
const WRITTEN_MS = 250; // Browsers refuse to be told many new addresses in a short time.
const main = document.querySelector("main");
const live = document.querySelector("#live");
const outage = document.querySelector("#outage");
const firing = document.querySelector("#firing");

let current = { left() {} }; // What ends the page that is opened.
let page = {};
let failed = false; // The page could not be shown, as nothing or nobody was let in: it is opened again once there is news.
let newest; // The overview, and when it came.
let ears = new AbortController();
let hearing; // The run that is heard.
let here; // The address of what is shown, as it was written last, and as it is to be.
let wanted;
let writing;

async function open() {
  write();
  current.left();
  const ending = new AbortController();
  const parts = location.pathname.split("/").slice(1).map(decoded);
  const mine = { left: () => ending.abort() };
  [current, page, failed] = [mine, {}, false];
  here = location.pathname + location.search;
  mark(parts[0]);
  try {
    if (!Object.hasOwn(PAGES, parts[0])) throw new Error(`There is no page ${location.pathname}.`);
    const { title, show } = await reached(import(`/static/pages/${PAGES[parts[0]]}.js`));
    const query = new URLSearchParams(location.search);
    const shown = await show({ parts: parts.slice(1), query, set: (changes) => current === mine && set(changes), signal: ending.signal });
    if (current !== mine) {
      shown.left?.();
      return;
    }
    mine.left = () => {
      ending.abort();
      shown.left?.();
    };
    page = shown;
    document.title = `${page.title ?? title} · trackside`;
    main.replaceChildren(page.root);
    if (newest) page.told?.(newest.overview);
    if (page.run !== hearing) listen(page.run);
  } catch (problem) {
    if (current !== mine) return;
    fail(problem);
    if (problem.status === 401) listen(); // Who was let in before may hear still.
  }
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // As in /runs/100%.
  }
}

// Hears what is new, as long as somebody can see it: a browser has few connections.
function listen(run = hearing) {
  ears.abort();
  ears = new AbortController();
  hearing = run;
  if (!document.hidden) hear(run, heard, broken, ears.signal);
}

function heard(event, data) {
  if (event === "run") page.heard?.(data);
  if (event !== "overview") return;
  if (newest && newest.overview.version !== data.version) location.reload();
  newest = { overview: data, at: Date.now() / 1000 };
  say(live, `Live, ${data.host.name ?? "this machine"}`);
  live.className = "";
  out("");
  const count = data.alerts.filter((one) => one.severity !== "info" && !one.silenced).length;
  say(firing, count >= MOST_ALERTS ? `${MOST_ALERTS}+` : String(count || ""));
  firing.hidden = !count;
  if (failed) open();
  else page.told?.(data);
}

function broken(problem) {
  if (problem.status === 401) {
    if (!failed) fail(problem);
    return;
  }
  live.className = "bad";
  say(live, "Not live");
  const since = newest ? `since ${when(newest.at)}` : "yet";
  out(`No news ${since}, trying on. ${problem.message.replace(/\.?$/, ".").replace(/^./, (first) => first.toUpperCase())}`);
}

// Tells that what is shown is old, and why; an empty text that it is new.
function out(text) {
  say(outage, text);
  outage.hidden = !text;
  main.classList.toggle("old", Boolean(text));
}

// Shows what went wrong in the place of the page, which is left.
function fail(problem) {
  current.left();
  [current, page] = [{ left() {} }, {}];
  failed = problem.status === 401 || problem instanceof Unreachable;
  document.title = "trackside";
  main.replaceChildren(explained(problem));
  if (problem.status !== 401) return;
  out("");
  live.className = "bad";
  say(live, "Not allowed");
}

// What went wrong, for a person.
function explained(problem) {
  if (problem.reason !== "token") return h("section.notice", { role: "alert" }, h("p", {}, problem.message));
  const stored = sessionStorage.getItem("token");
  const restarted = newest ? "The daemon was restarted and has a new token" : "The token is wrong, or older than the daemon's last start";
  return h(
    "section.notice",
    { role: "alert" },
    h("h1", {}, stored ? restarted : "The token is missing"),
    h("p", {}, `To see the runs, open ${location.origin}${here}#token=TOKEN. The daemon says: ${problem.message}.`),
  );
}

function set(changes) {
  wanted ??= new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    wanted.searchParams.delete(name);
    for (const one of [value].flat()) {
      if (one !== undefined && one !== null && one !== "") wanted.searchParams.append(name, one);
    }
  }
  if (!writing) write();
}

// Writes the address that is wanted, and what is wanted soon after it later, at once.
function write() {
  clearTimeout(writing);
  writing = wanted && setTimeout(write, WRITTEN_MS);
  if (!wanted) return;
  history.replaceState(history.state, "", wanted);
  here = location.pathname + location.search;
  wanted = undefined;
}

function mark(first) {
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === `/${first}` || (first === "runs" && link.getAttribute("href") === "/");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// Goes to an address of ours without loading the frame again.
function go(address) {
  write();
  history.pushState(null, "", address);
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
  visit();
}

// Opens what the address means. Nobody who was not let in waits for the next attempt.
function visit() {
  if (failed) listen();
  open();
}

addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  const plain = !event.defaultPrevented && event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (!Object.hasOwn(PAGES, link.pathname.split("/")[1]) || (link.hash && link.pathname === location.pathname)) return;
  event.preventDefault();
  go(link.href);
});
addEventListener("popstate", () => {
  if (location.pathname + location.search === here) return; // Only the fragment is another.
  wanted = undefined;
  visit();
});
addEventListener("hashchange", () => {
  if (!takeToken()) return;
  newest = undefined; // It was of another token.
  listen();
  open();
});
addEventListener("pagehide", write);
addEventListener("online", () => listen());
document.addEventListener("visibilitychange", () => {
  say(live, document.hidden ? "Paused" : "Connecting…");
  listen();
});
takeToken();
listen();
open();
