// The runs that ended last. The page Runs has all of them, with filters, and with what one can do with them.

import { getJson, query } from "/static/api.js";
import { h, syncRows, setText, badge, ENDED, table, unseen } from "/static/dom.js";
import { ownerOf } from "/static/overview/live_runs.js";
import { number, runAddress, span, when } from "/static/format.js";
import { labels } from "/static/picker.js";

const MOST = 10;
// A run that has just ended reaches the history a moment later, so the list is reloaded with this many overviews.
const RELOADS = 3;
const COLUMNS = ["Run", "State", ["Step", "number"], ["Loss", "number"], ["Started", "wide"], ["Duration", "wide"]];

// `onLoad(hasRuns)` is called with whether any run has ended.
export function endedRuns(address, selection, onLoad) {
  const body = h("tbody");
  const list = h("div.scroll", {}, table([unseen("Compare"), ...COLUMNS], body, "table.ended"));
  const error = h("p.bad", { role: "alert", hidden: true });
  const root = h("section", { hidden: true },
    h("div.head", {}, h("h2", {}, "Ended last"), h("a", { href: "/runs" }, "All runs")), error, list);
  let lastSeen;
  let reloadsLeft = RELOADS;

  async function load(liveIds) {
    try {
      // All of the newest may be live. A run without `ended` is so new that the history does not contain it yet.
      const { runs } = await getJson(`runs?${query({ limit: MOST + liveIds.size })}`, address.signal);
      const names = labels(runs);
      const owner = ownerOf(runs);
      const items = runs.map((run, index) => ({ ...run, label: names[index], owner: owner(run) }))
        .filter((run) => run.ended !== undefined && !liveIds.has(run.id)).slice(0, MOST);
      syncRows(body, items, (run) => run.id, (run) => endedRow(run, selection));
      root.hidden = !items.length;
      error.hidden = true;
      onLoad(items.length > 0);
    } catch (problem) {
      if (address.signal.aborted || problem.status === 401) return;
      setText(error, problem.message);
      error.hidden = root.hidden = false;
    }
  }

  return {
    root,
    update({ runs }) {
      const now = runs.map((run) => `${run.id} ${ENDED.has(run.state)}`).join();
      if (now !== lastSeen) reloadsLeft = RELOADS;
      lastSeen = now;
      if (reloadsLeft === 0) return;
      reloadsLeft -= 1;
      load(new Set(runs.filter((run) => !ENDED.has(run.state)).map((run) => run.id)));
    },
  };
}

function endedRow(first, selection) {
  const state = badge();
  const [step, loss] = ["Step", "Loss"].map((name) => h(`td.number.${name.toLowerCase()}`, { "data-name": name }));
  const [started, took] = [h("td.wide"), h("td.wide")];
  const name = h("a.clamp", { href: runAddress(first.id), title: first.name });
  const owner = h("span.quiet");
  const row = h("tr", {}, h("td.box", {}, selection.box(first)), h("th.name", { scope: "row" },
    h("div.named", {}, name, owner)), h("td.state", {}, state), step, loss, started, took);
  row.update = (run) => {
    state.update(run.state);
    state.title = run.cause ?? "";
    for (const [cell, text] of [[name, run.label], [owner, run.owner], [step, number(run.step)], [loss,
      number(run.loss)], [started, when(run.started)], [took, run.ended === null ? "" : span(run.ended - run.started)]])
        setText(cell, text);
    loss.classList.toggle("nonfinite", typeof run.loss === "string");
  };
  return row;
}
