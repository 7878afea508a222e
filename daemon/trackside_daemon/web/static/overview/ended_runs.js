// The ended runs, newest first, with filters that are kept in the address.

import { getJson, post, query, remove } from "/static/api.js";
import { confirmDialog } from "/static/confirm.js";
import { h, syncRows, setText } from "/static/dom.js";
import { endedRow } from "/static/overview/ended_row.js";
import { ownerOf } from "/static/overview/users.js";
import { ENDED } from "/static/components.js";
import { plural } from "/static/format.js";

const PAGE_SIZE = 50;
const TYPING_MS = 250;
// A run that has just ended reaches the history a moment later, so the list is reloaded with this many overviews.
const RELOADS = 3;
const FILTERS = ["name", "tag", "state"];

export function endedRuns(address, selection, onCount) {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, address.query.get(name) ?? ""]));
  const fields = { name: searchField("Name", "name or id"), tag: searchField("Tag", "tag"), state: stateField() };
  const body = h("tbody");
  const table = h("div.scroll", {}, h("table.ended", {}, h("thead", {}, h("tr", {}, columnHeads())), body));
  const noMatch = h("p.quiet");
  const listError = h("p.bad", { role: "alert", hidden: true });
  const actionError = h("p.bad", { role: "alert", hidden: true });
  const moreButton = h("button", { type: "button", onclick: () => showMore() }, "Show more");
  const count = h("span.quiet", { role: "status" });
  const labels = FILTERS.map((name) => h("label", {}, fields[name].label, fields[name].input));
  const tools = h("div.tools", { role: "search", "aria-label": "Ended runs" }, labels, count);
  const root = h("section", { hidden: true }, h("div.head", {}, h("h2", {}, "Ended runs"), h("a", { href: "/runs" }, "All runs as a table")), tools, listError, actionError, table, noMatch, h("div.tools", {}, moreButton));

  let limit = PAGE_SIZE;
  let liveIds = new Set();
  let loadedRuns = [];
  let lastSeen;
  let reloadsLeft = RELOADS;
  let typingTimer;
  let requestCount = 0;

  const hasFilters = () => FILTERS.some((name) => filters[name]);

  function show() {
    // A run without `ended` is so new that the history does not contain it yet.
    const ended = loadedRuns.filter((run) => run.ended !== undefined && !liveIds.has(run.id));
    const owner = ownerOf(loadedRuns);
    const items = ended.slice(0, limit).map((run) => ({ ...run, owner: owner(run) }));
    syncRows(body, items, (run) => run.id, (run) => endedRow(run, selection, actions));
    table.hidden = !items.length;
    setText(noMatch, items.length ? "" : "No matching runs.");
    moreButton.hidden = ended.length <= limit;
    setText(count, items.length ? `${moreButton.hidden ? "" : "the newest "}${plural(items.length, "run")}` : "");
    root.hidden = !items.length && !hasFilters();
    onCount(items.length > 0 || hasFilters());
  }

  async function load() {
    requestCount += 1;
    const number = requestCount;
    await attempt(listError, async () => {
      // All of the newest may be live; one more entry shows whether there are more.
      const answer = await getJson(`runs?${query({ ...filters, limit: limit + liveIds.size + 1 })}`, { signal: address.signal });
      if (number !== requestCount) return;
      loadedRuns = answer.runs;
      show();
    });
  }

  async function attempt(errorLine, call) {
    try {
      await call();
      errorLine.hidden = true;
    } catch (problem) {
      if (address.signal.aborted || problem.status === 401) return;
      setText(errorLine, problem.message);
      errorLine.hidden = false;
    }
  }

  function showMore() {
    limit *= 2;
    return load();
  }

  function filter() {
    clearTimeout(typingTimer);
    for (const name of FILTERS) filters[name] = fields[name].input.value.trim();
    limit = PAGE_SIZE;
    address.set(filters);
    return load();
  }

  const actions = {
    tag(tag) {
      fields.tag.input.value = tag;
      filter();
    },
    pin: (run) => attempt(actionError, () => post(`runs/${encodeURIComponent(run.id)}/pin`, { pinned: !run.pinned })).then(load),
    async delete(run) {
      const text = `This also deletes all samples, events and alerts of ${run.name}. You cannot undo it.`;
      if (!(await confirmDialog("Delete this run?", text, "Delete", address.signal))) return;
      await attempt(actionError, async () => {
        await remove(`runs/${encodeURIComponent(run.id)}`);
        selection.remove(run.id);
      });
      await load();
    },
  };

  for (const name of FILTERS) {
    const { input } = fields[name];
    input.value = filters[name];
    input.addEventListener("input", () => {
      clearTimeout(typingTimer);
      typingTimer = setTimeout(filter, name === "state" ? 0 : TYPING_MS);
    });
  }
  address.signal.addEventListener("abort", () => clearTimeout(typingTimer));

  return {
    root,
    update({ runs }) {
      const now = runs.map((run) => `${run.id} ${ENDED.has(run.state)}`).join();
      liveIds = new Set(runs.filter((run) => !ENDED.has(run.state)).map((run) => run.id));
      if (now !== lastSeen) reloadsLeft = RELOADS;
      lastSeen = now;
      if (reloadsLeft > 0) {
        reloadsLeft -= 1;
        load();
      }
    },
  };
}

function searchField(label, placeholder) {
  return { label, input: h("input", { type: "search", placeholder, autocomplete: "off", spellcheck: "false" }) };
}

function stateField() {
  const options = ["", ...ENDED].map((name) => h("option", { value: name }, name || "any"));
  return { label: "State", input: h("select", {}, options) };
}

function columnHeads() {
  const hidden = (text) => h("span.unseen", {}, text);
  return [
    h("th", { scope: "col" }, hidden("Compare")),
    h("th", { scope: "col" }, "Run"),
    h("th", { scope: "col" }, "State"),
    h("th.number", { scope: "col" }, "Step"),
    h("th.number", { scope: "col" }, "Loss"),
    h("th.wide", { scope: "col" }, "Started"),
    h("th.wide", { scope: "col" }, "Duration"),
    h("th", { scope: "col" }, hidden("Pin or delete")),
  ];
}
