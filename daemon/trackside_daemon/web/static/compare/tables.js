// The tables of a comparison: what the runs came to, and what they were started with.

import { best } from "/static/compare/sums.js";
import { settings } from "/static/compare/settings.js";
import { h } from "/static/dom.js";
import { dot } from "/static/picker.js";
import { number, plural, runAddress, span } from "/static/words.js";

const LONG = 160; // Letters; more are scrolled.
const ABOUT = [["Run"], ["State"], ["Steps", "number"], ["Took", "number"]];
const COLUMNS = ["last", "min", "max"];

// A row a run { id, label, place, state, step, seconds, sums }, three columns a key; the best is marked with the word.
export function results(runs, keys) {
  const head = h(
    "thead",
    {},
    h("tr", {}, ABOUT.map(titleOf), keys.map((key) => h("th.key", { scope: "colgroup", colspan: 3 }, key))),
    h("tr", {}, ...keys.flatMap(() => COLUMNS.map((one) => h("th.number", { scope: "col" }, one)))),
  );
  const marked = keys.map((key) => COLUMNS.map((name) => (sensible(key, name) ? best(key, runs.map((run) => run.sums.get(key)?.[name])) : [])));
  const body = runs.map((run, row) =>
    h(
      "tr",
      {},
      h("th.name", { scope: "row" }, titled(run, h("a", { href: runAddress(run.id) }, run.label))),
      h(`td.${run.state}`, {}, run.state),
      h("td.number", {}, number(run.step)),
      h("td.number.took", {}, span(run.seconds)),
      ...keys.flatMap((key, one) => COLUMNS.map((name, column) => cell(run.sums.get(key)?.[name], marked[one][column].includes(row)))),
    ),
  );
  return scrolled("Results", h("table.results", {}, h("caption.spoken", {}, "Results"), head, h("tbody", {}, ...body)));
}

function titleOf([text, kind]) {
  return h(kind ? `th.${kind}` : "th", { scope: "col", rowspan: 2 }, text);
}

// The highest loss is nothing to be best at.
function sensible(key, name) {
  return name === "last" || best(key, [0, 1])[0] === (name === "min" ? 0 : 1);
}

function cell(value, best) {
  return h(best ? "td.number.best" : "td.number", {}, best && h("span.mark", {}, "best"), number(value));
}

// Rows whose values differ, or all of them; and how many those are, in words.
export function configuration(runs, documents, all) {
  const groups = settings(documents).map(([title, rows]) => [title, rows, rows.filter((row) => all || row.differs)]);
  const shown = groups.filter(([, , rows]) => rows.length);
  const count = groups.reduce((sum, [, rows]) => sum + rows.length, 0);
  const differ = groups.reduce((sum, [, rows]) => sum + rows.filter((row) => row.differs).length, 0);
  const values = plural(count, "value");
  const said = runs.length < 2 ? values : differ ? `${differ} of ${values} differ` : `All ${values} are the same`;
  const head = h("tr", {}, h("th", { scope: "col" }, "Setting"), ...runs.map((run) => h("th.name", { scope: "col" }, titled(run, h("span", {}, run.label)))));
  const bodies = shown.map(([title, , rows]) => {
    const group = h("tr", {}, h("th.group", { scope: "rowgroup", colspan: runs.length + 1 }, title));
    return h("tbody", {}, group, rows.map((row) => line(row, all && runs.length > 1)));
  });
  const table = h("table.settings", {}, h("caption.spoken", {}, "Configuration"), h("thead", {}, head), ...bodies);
  return { said, root: shown.length ? scrolled("Configuration", table) : undefined };
}

// Where all are shown, those that differ have a mark.
function line({ name, values, differs }, all) {
  const title = h("th", { scope: "row" }, h("span.mono", {}, name), all && differs && h("span.mark", {}, "differs"));
  const long = (value) => h("div.long", { tabindex: 0, role: "group", "aria-label": name }, value);
  return h(all && differs ? "tr.differs" : "tr", {}, title, values.map((value) => h("td.text", {}, value?.length > LONG ? long(value) : value)));
}

function titled(run, name) {
  return h("span.titled", {}, dot(run.place), name);
}

function scrolled(label, table) {
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, table);
}
