// The starts and ends of runs, newest first: events on a timeline, which are no alerts.

import { getJson, query } from "/static/api.js";
import { h, setText, ENDED, badge, rerender } from "/static/dom.js";
import { runAddress, span, when } from "/static/format.js";
import { labels } from "/static/picker.js";

const RUNS = 30; // The newest runs, whose starts and ends are shown.
const SHOWN = 12;

// `isShown(run)` is whether a run passes the filters of the page.
export function runTimeline(signal, isShown) {
  const list = h("ol.timeline", { "aria-label": "Starts and ends of runs" });
  const emptyText = h("p.quiet", {}, "No runs.");
  const moreButton = h("button.small", { hidden: true, onclick: () => {
    limit = Infinity;
    show();
  } }, "Show more");
  let limit = SHOWN;
  let events = [];

  function show() {
    emptyText.hidden = events.length > 0;
    moreButton.hidden = events.length <= limit;
    const shown = events.slice(0, limit);
    rerender(list, JSON.stringify(shown), () => shown.map(row));
  }

  async function load() {
    const { runs } = await getJson(`runs?${query({ limit: RUNS })}`, signal);
    const names = labels(runs);
    events = runs.map((run, index) => ({ ...run, label: names[index] })).filter(isShown).flatMap(eventsOf)
      .sort((a, b) => b.time - a.time);
    show();
  }
  return { root: h("div", {}, emptyText, list, moreButton), load };
}

function eventsOf(run) {
  const { id, label, state, cause, started, ended } = run;
  const about = { id, label };
  const begin = { ...about, time: started, word: "started" };
  if (ended === null || ended === undefined || !ENDED.has(state)) return [begin];
  const reason = cause ? `: ${cause}` : "";
  return [{ ...about, time: ended, word: state, text: ` after ${span(Math.max(0, ended - started))}${reason}` }, begin];
}

function row({ id, label, time, word, text }) {
  const mark = badge(word === "started" ? "starting" : word, word);
  const rest = h("span.quiet");
  setText(rest, text ?? "");
  return h("li", {}, h("time.quiet", {}, when(time)), mark,
    h("span", {}, h("a", { href: runAddress(id) }, label), rest));
}
