// The frame round all pages: which page an address means, what is live, and what goes wrong.
//
// A page is a module with `title` and `show(place)`, which returns `{ root, told?(overview), run?, heard?(run), left?() }`:
// its element; what is told the overview each second; the run whose newest values it hears too; what ends it.
// A place is an address: `{ parts, query, set(changes), signal }`; `set` changes the query without a new page.

import { Refusal, hear, takeToken } from "/static/api.js";
import { h, say } from "/static/dom.js";

const PAGES = { "": "overview", runs: "run", compare: "compare", system: "system", alerts: "alerts", export: "export" };
// So many does the overview tell.
const MOST_ALERTS = 200;
const main = document.querySelector("main");
const live = document.querySelector("#live");
const firing = document.querySelector("#firing");

let current = { left() {} };
let newest;

// The address of a run's page.
export function runAddress(id) {
  return `/runs/${encodeURIComponent(id)}`;
}

async function open() {
  current.left();
  const ending = new AbortController();
  const parts = location.pathname.split("/").slice(1).map(decodeURIComponent);
  const mine = { left: () => ending.abort() };
  current = mine;
  mark(parts[0]);
  try {
    const name = PAGES[parts[0]];
    if (!name) throw new Error(`There is no page ${location.pathname}.`);
    const { title, show } = await import(`/static/pages/${name}.js`);
    const page = await show({ parts: parts.slice(1), query: new URLSearchParams(location.search), set, signal: ending.signal });
    if (current !== mine) {
      page.left?.();
      return;
    }
    mine.left = () => {
      ending.abort();
      page.left?.();
    };
    document.title = `${page.title ?? title} · trackside`;
    main.replaceChildren(page.root);
    if (newest) page.told?.(newest);
    listen(page, ending.signal);
  } catch (problem) {
    if (current === mine) {
      document.title = "trackside";
      main.replaceChildren(explained(problem));
      listen({}, ending.signal);
    }
  }
}

function listen(page, signal) {
  let refused = false;
  const heard = (event, data) => {
    if (refused) return open();
    if (event === "overview") {
      newest = data;
      say(live, `Live, ${data.host.name ?? "this machine"}`);
      live.className = "";
      const count = data.alerts.filter((one) => one.severity !== "info" && !one.silenced).length;
      say(firing, count >= MOST_ALERTS ? `${MOST_ALERTS}+` : String(count || ""));
      firing.hidden = !count;
      page.told?.(data);
    } else if (event === "run") {
      page.heard?.(data);
    }
    return undefined;
  };
  const broken = (problem) => {
    refused = problem instanceof Refusal && problem.status === 401;
    live.className = "bad";
    say(live, refused ? "Not allowed" : "No answer, trying on…");
    if (refused) main.replaceChildren(explained(problem));
  };
  hear(page.run, heard, broken, signal);
}

// What went wrong, for a person.
export function explained(problem) {
  if (problem.reason === "token") {
    return h(
      "section.notice",
      { role: "alert" },
      h("h1", {}, "The token is missing"),
      h("p", {}, `To see the runs, open ${location.origin}/#token=TOKEN. The daemon says: ${problem.message}.`),
    );
  }
  const text = problem instanceof TypeError ? "The daemon does not answer." : problem.message;
  return h("section.notice", { role: "alert" }, h("p", {}, text));
}

function set(changes) {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    address.searchParams.delete(name);
    for (const one of [value].flat()) {
      if (one !== undefined && one !== null && one !== "") address.searchParams.append(name, one);
    }
  }
  history.replaceState(null, "", address);
}

function mark(first) {
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === `/${first}` || (first === "runs" && link.getAttribute("href") === "/");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// Goes to an address of ours without loading the frame again.
export function go(address) {
  history.pushState(null, "", address);
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
  return open();
}

addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  const plain = !event.defaultPrevented && event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (!(link.pathname.split("/")[1] in PAGES) || (link.hash && link.pathname === location.pathname)) return;
  event.preventDefault();
  go(link.href);
});
addEventListener("popstate", open);
addEventListener("hashchange", () => takeToken() && open());
takeToken();
open();
