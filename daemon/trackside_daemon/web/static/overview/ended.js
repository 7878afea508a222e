// The runs that have ended, the newest first, some at first and more when asked for; what is filtered is in the address.

import { ask, post, query, remove } from "/static/api.js";
import { confirmed } from "/static/confirm.js";
import { h, rows, say } from "/static/dom.js";
import { endedRow } from "/static/overview/ended_row.js";
import { ENDED } from "/static/parts.js";
import { plural } from "/static/words.js";

const FIRST = 50;
const TYPING_MS = 250;
// What has just ended is in the history a moment later: it is asked for again that often, with each overview.
const TIMES = 3;
const FILTERS = ["name", "tag", "state"];

export function ended(place, choice, counted) {
  const wanted = Object.fromEntries(FILTERS.map((one) => [one, place.query.get(one) ?? ""]));
  const fields = { name: search("Name", "name or id"), tag: search("Tag", "tag"), state: states() };
  const body = h("tbody");
  const table = h("div.scroll", {}, h("table.ended", {}, h("thead", {}, h("tr", {}, heads())), body));
  const nothing = h("p.quiet");
  const wrong = h("p.bad", { role: "alert", hidden: true }); // Of the list; and of what a button was to do:
  const refused = h("p.bad", { role: "alert", hidden: true });
  const more = h("button", { type: "button", onclick: () => grow() }, "Show more");
  const found = h("span.quiet", { role: "status" });
  const labels = FILTERS.map((one) => h("label", {}, fields[one].label, fields[one].input));
  const tools = h("div.tools", { role: "search", "aria-label": "Ended runs" }, labels, found);
  const root = h("section", { hidden: true }, h("h2", {}, "Ended runs"), tools, wrong, refused, table, nothing, h("div.tools", {}, more));

  let limit = FIRST;
  let living = new Set();
  let kept = [];
  let known;
  let again = TIMES;
  let typing;
  let asked = 0;

  const filtered = () => FILTERS.some((one) => wanted[one]);

  function show() {
    // What has no `ended` is so new that the history does not have it yet.
    const every = kept.filter((run) => run.ended !== undefined && !living.has(run.id));
    const items = every.slice(0, limit);
    rows(body, items, (run) => run.id, (run) => endedRow(run, choice, acts));
    table.hidden = !items.length;
    say(nothing, items.length ? "" : "None like these.");
    more.hidden = every.length <= limit;
    say(found, items.length ? `${more.hidden ? "" : "the newest "}${plural(items.length, "run")}` : "");
    root.hidden = !items.length && !filtered();
    counted(items.length > 0 || filtered());
  }

  async function load() {
    asked += 1;
    const mine = asked;
    await attempt(wrong, async () => {
      // The newest may all live; one more says whether there are more.
      const answer = await ask(`runs?${query({ ...wanted, limit: limit + living.size + 1 })}`, { signal: place.signal });
      if (mine !== asked) return;
      kept = answer.runs;
      show();
    });
  }

  async function attempt(told, call) {
    try {
      await call();
      told.hidden = true;
    } catch (problem) {
      if (place.signal.aborted || problem.status === 401) return;
      say(told, problem.message);
      told.hidden = false;
    }
  }

  function grow() {
    limit *= 2;
    return load();
  }

  function filter() {
    clearTimeout(typing);
    for (const one of FILTERS) wanted[one] = fields[one].input.value.trim();
    limit = FIRST;
    place.set(wanted);
    return load();
  }

  const acts = {
    tag(tag) {
      fields.tag.input.value = tag;
      filter();
    },
    pin: (run) => attempt(refused, () => post(`runs/${encodeURIComponent(run.id)}/pin`, { pinned: !run.pinned })).then(load),
    async delete(run) {
      const text = `All its samples, events and alerts go with it, and cannot be brought back. It is ${run.name}.`;
      if (!(await confirmed("Delete this run?", text, "Delete", place.signal))) return;
      await attempt(refused, async () => {
        await remove(`runs/${encodeURIComponent(run.id)}`);
        choice.forget(run.id);
      });
      await load();
    },
  };

  for (const one of FILTERS) {
    const { input } = fields[one];
    input.value = wanted[one];
    input.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(filter, one === "state" ? 0 : TYPING_MS);
    });
  }
  place.signal.addEventListener("abort", () => clearTimeout(typing));

  return {
    root,
    told({ runs }) {
      const now = runs.map((run) => `${run.id} ${ENDED.has(run.state)}`).join();
      living = new Set(runs.filter((run) => !ENDED.has(run.state)).map((run) => run.id));
      if (now !== known) again = TIMES;
      known = now;
      if (again > 0) {
        again -= 1;
        load();
      }
    },
  };
}

function search(label, placeholder) {
  return { label, input: h("input", { type: "search", placeholder, autocomplete: "off", spellcheck: "false" }) };
}

function states() {
  const options = ["", ...ENDED].map((one) => h("option", { value: one }, one || "any"));
  return { label: "State", input: h("select", {}, options) };
}

function heads() {
  const hidden = (text) => h("span.unseen", {}, text);
  return [
    h("th", { scope: "col" }, hidden("Compare")),
    h("th", { scope: "col" }, "Run"),
    h("th", { scope: "col" }, "State"),
    h("th.number", { scope: "col" }, "Step"),
    h("th.number", { scope: "col" }, "Loss"),
    h("th.wide", { scope: "col" }, "Started"),
    h("th.wide", { scope: "col" }, "Took"),
    h("th", { scope: "col" }, hidden("Keep or delete")),
  ];
}
