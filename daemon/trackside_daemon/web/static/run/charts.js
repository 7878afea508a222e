// A chart of every key, in sections of those whose names begin alike up to a slash.

import { ask, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { counted } from "/static/charts/lines.js";
import { Gathered } from "/static/run/gathered.js";
import { h, rows, say } from "/static/dom.js";
import { isLoss } from "/static/run/words.js";
import { plural } from "/static/words.js";

const FOLDED = 48; // A section with more charts is opened by the person.
const BUCKETS = 100_000; // Of a question for several keys; the daemon makes fewer where more are asked for.
const DULL = ["epoch", "samples", "tokens"];
const LOOK = ["by", "smooth", "log", "marks", "from", "to"];

export class Charts {
  constructor(run, chosen, zoomed, signal) {
    Object.assign(this, { id: run.id, chosen, zoomed, signal, charts: new Map(), marks: [] });
    this.gathered = new Gathered(signal);
    this.sections = h("div");
    this.none = h("p.quiet");
    this.cut = h("p.quiet", { hidden: true });
    this.root = h("section", { "aria-label": "Charts" }, this.none, this.cut, this.sections);
  }

  has(key) {
    return this.charts.has(key);
  }

  // The keys that a filter has left; none when there is no filter.
  get filtered() {
    return this.chosen.filter ? this.#wanted() : [];
  }

  told(run) {
    this.attempts = run.attempt_list.length;
    for (const { key } of run.metrics) if (!this.charts.has(key)) this.charts.set(key, this.#chart(key));
    this.#arrange();
  }

  // Draws what was chosen: most of it the charts do, some of it must be asked for anew.
  set(changes) {
    if (changes.marks) this.marks = changes.marks;
    if ("cut" in changes) say(this.cut, changes.cut);
    this.cut.hidden = !this.cut.textContent;
    const look = Object.fromEntries(Object.entries(changes).filter(([name]) => LOOK.includes(name)));
    for (const chart of this.charts.values()) {
      if (Object.keys(look).length) chart.set(look);
      if ("ranks" in changes || "attempt" in changes) chart.reload();
    }
    if ("filter" in changes) this.#arrange();
  }

  // There is news: what is shown of it is loaded again.
  heard({ step, time }) {
    const { by, to } = this.chosen;
    if (to !== undefined && to < (by === "step" ? step : time - 10)) return;
    for (const chart of this.charts.values()) chart.refresh();
  }

  #chart(key) {
    const { by, smooth, log, from, to } = this.chosen;
    const look = { title: key, by, smooth, log, from, to, marks: this.marks, sync: "run", fewer: "choose an attempt or the band" };
    return new Chart({ ...look, zoomed: this.zoomed, load: (asked) => this.#load(key, asked) }, this.signal);
  }

  async #load(key, { by, from, to, points, signal, again }) {
    const { ranks, attempt } = this.chosen;
    const who = { lowest: {}, all: { rank: "all" }, band: { ranks: "band" } }[ranks];
    const wanted = { run: this.id, by, from, to, points, attempt, ...who };
    const most = Math.floor(BUCKETS / points / this.attempts);
    const gathered = again && ranks === "lowest" && most > 1;
    const series = gathered ? await this.gathered.series(key, wanted, most) : (await ask(`series?${query({ ...wanted, key })}`, { signal })).series;
    const attempts = new Set(series.map((each) => each.attempt)).size;
    return series.map((one, place) => named(one, place, ranks, attempts));
  }

  #wanted() {
    const wanted = this.chosen.filter.toLowerCase();
    return [...this.charts.keys()].filter((key) => key.toLowerCase().includes(wanted));
  }

  #arrange() {
    const keys = this.#wanted();
    this.none.hidden = keys.length > 0;
    say(this.none, this.charts.size ? `No key has “${this.chosen.filter}” in its name.` : "No values yet. Add trackside.push(step=step, loss=loss).");
    rows(this.sections, sections(keys), ([name]) => name, ([name, own]) => section(name, own.length, (key) => this.charts.get(key).root));
  }
}

function named(one, place, wanted, attempts) {
  const { attempt, rank, ranks } = one;
  const who = wanted === "band" ? `${plural(ranks, "rank")}, median` : wanted === "all" ? `rank ${rank}` : "";
  const which = attempts > 1 ? `attempt ${attempt}` : "";
  return { label: [who, which].filter(Boolean).join(", "), place: wanted === "all" && attempts === 1 ? rank : place, points: counted(one) };
}

function section(name, count, rootOf) {
  const grid = h("div.charts");
  const head = h("span.quiet");
  const root = h("details.run-section", { open: count <= FOLDED }, h("summary", {}, h("h2", {}, name || "Charts"), head), grid);
  root.told = ([, keys]) => {
    say(head, plural(keys.length, "key"));
    rows(grid, keys, (key) => key, rootOf);
  };
  return root;
}

// Names and keys of the sections: first those without a name of their own, in each the losses first.
export function sections(keys) {
  const prefix = (key) => key.slice(0, Math.max(0, key.indexOf("/")));
  const places = new Map(keys.map((key, place) => [key, place]));
  const groups = new Map([["", []]]);
  for (const key of keys) groups.set(prefix(key), [...(groups.get(prefix(key)) ?? []), key]);
  for (const [name, own] of groups) {
    if (!name || own.length > 1) continue;
    groups.get("").push(...own);
    groups.delete(name);
  }
  const rank = (key) => (isLoss(key) ? 0 : DULL.includes(key) ? 2 : 1);
  const before = (one, other) => rank(one) - rank(other) || places.get(one) - places.get(other);
  return [...groups].filter(([, own]) => own.length).map(([name, own]) => [name, own.sort(before)]);
}
