// What is now: runs, GPUs, the host and what fires; below it the runs that have ended.

import { ask } from "/static/api.js";
import { runAddress } from "/static/app.js";
import { h, rows, say, sparkline } from "/static/dom.js";
import { number, percent, plural, short, span } from "/static/words.js";

export const title = "Overview";

export async function show() {
  const body = h("tbody");
  const root = h("div", {}, h("h1", {}, "Runs"), h("div.scroll", {}, h("table", {}, h("thead", {}, h("tr", {}, ...["Run", "State", "Step", "Loss"].map((one) => h("th", { scope: "col" }, one)))), body)));
  return {
    root,
    told(overview) {
      rows(body, overview.runs, (run) => run.id, () => {
        const cells = [h("td.name"), h("td"), h("td.number"), h("td.number")];
        const row = h("tr", {}, ...cells);
        row.told = (run) => {
          if (!cells[0].firstChild) cells[0].append(h("a", { href: runAddress(run.id) }, run.name));
          say(cells[1], run.state);
          say(cells[2], number(run.step));
          say(cells[3], number(run.loss));
        };
        return row;
      });
    },
  };
}
