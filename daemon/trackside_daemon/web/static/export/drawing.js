// A chart of what was chosen, and the button that makes a picture of it.

import { ask, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { counted } from "/static/charts/lines.js";
import { save } from "/static/charts/picture.js";
import { fileName } from "/static/export/file.js";
import { h, say } from "/static/dom.js";

const LINES = 8;

export class Drawing {
  // `zoomed(from, to)` is told of a zoom.
  constructor(zoomed, signal) {
    Object.assign(this, { zoomed, signal });
    this.button = h("button", { type: "button", onclick: () => this.#png() }, "Download PNG");
    this.said = h("p", { role: "status" });
    this.drawn = h("div");
    this.root = h("section", {}, h("h2", {}, "Picture"), this.drawn, h("div.tools", {}, this.button), this.said);
  }

  refresh() {
    this.chart?.refresh();
  }

  // Draws a choice of a run; without keys all those of `every`. `lowest` is whether no rank was chosen of several.
  told(choice, run, every, lowest) {
    const { ranks, attempt, by, from, to } = choice;
    const keys = choice.keys.length ? choice.keys : every;
    const made = JSON.stringify([run.id, keys, ranks, attempt, by]);
    if (made === this.made) {
      this.chart?.set({ from, to });
      return;
    }
    this.made = made;
    this.ending?.abort();
    this.chart = undefined;
    this.button.hidden = keys.length > LINES || !keys.length;
    if (this.button.hidden) {
      this.drawn.replaceChildren(h("p.quiet", {}, keys.length ? `Choose at most ${LINES} keys to draw them.` : "No values yet."));
      return;
    }
    this.ending = new AbortController();
    const load = async ({ by: axis, from: low, to: high, points, signal }) => {
      const asked = query({ run: run.id, key: keys, rank: ranks, attempt, by: axis, from: low, to: high, points });
      return named((await ask(`series?${asked}`, { signal })).series, keys);
    };
    const title = keys.length === 1 ? `${run.name}, ${keys[0]}` : run.name;
    this.file = fileName({ keys: choice.keys, form: "png" }, run.name).replace(/\.png$/, "");
    this.chart = new Chart({ title, by, from, to, load, zoomed: this.zoomed }, AbortSignal.any([this.signal, this.ending.signal]));
    const whose = lowest && h("p.quiet", {}, "Of the lowest rank. Choose ranks to draw others.");
    this.drawn.replaceChildren(...[whose, this.chart.root].filter(Boolean));
  }

  async #png() {
    try {
      save(await this.chart.png(), this.file);
      say(this.said, "");
    } catch (problem) {
      say(this.said, problem.message);
    }
  }
}

// Lines with the names of keys, and of ranks and attempts where there are several.
function named(series, keys) {
  const several = (name) => new Set(series.map((one) => one[name])).size > 1;
  const [ranks, attempts] = [several("rank"), several("attempt")];
  const numbers = new Map();
  return series.filter((one) => one.points.length).map((one) => {
    const { key, rank, attempt } = one;
    const number = numbers.get(key) ?? 0;
    numbers.set(key, number + 1);
    const label = [key, ranks && `rank ${rank}`, attempts && `attempt ${attempt}`].filter(Boolean).join(", ");
    return { label, place: keys.length === 1 ? number : keys.indexOf(key) + LINES * number, points: counted(one) };
  });
}
