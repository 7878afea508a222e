// A chart of the selection, and a button that downloads it as an image.

import { getJson, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { withDetails } from "/static/charts/lines.js";
import { zoomReset } from "/static/charts/interaction.js";
import { save } from "/static/charts/image.js";
import { fileName } from "/static/export/file.js";
import { h, setText } from "/static/dom.js";

const MAX_LINES = 8;

export class Preview {
  // `onZoom(from, to)` is called after a zoom.
  constructor(onZoom, signal) {
    this.onZoom = onZoom;
    this.signal = signal;
    this.reset = zoomReset(() => this.chart.zoom());
    this.button = h("button", { onclick: () => this.#png() }, "Download PNG");
    this.status = h("p", { role: "status" });
    this.chartBox = h("div");
    this.root = h("section", {}, h("h2", {}, "Chart"), this.chartBox,
      h("div.tools", {}, this.button, this.reset.button), this.status);
  }

  refresh() {
    this.chart?.refresh();
  }

  // Draws a selection of a run; without keys, all of `allKeys`. `onlyLowestRank`: none of several ranks is selected.
  update(selection, run, allKeys, onlyLowestRank) {
    const { ranks, attempt, by, from, to } = selection;
    const keys = selection.keys.length ? selection.keys : allKeys;
    this.reset.update(from, to);
    const shown = JSON.stringify([run.id, keys, ranks, attempt, by]);
    if (shown === this.shown) {
      this.chart?.set({ from, to });
      return;
    }
    this.shown = shown;
    this.chartController?.abort();
    this.chart = undefined;
    this.button.hidden = keys.length > MAX_LINES || !keys.length;
    if (this.button.hidden) {
      this.chartBox.replaceChildren(h("p.quiet", {},
        keys.length ? `Select at most ${MAX_LINES} keys to see a chart.` : "No values yet."));
      return;
    }
    this.chartController = new AbortController();
    const load = async ({ by: axis, from: low, to: high, points, signal }) => {
      const search = query({ run: run.id, key: keys, rank: ranks, attempt, by: axis, from: low, to: high, points });
      return toLines((await getJson(`series?${search}`, signal)).series, keys);
    };
    const title = keys.length === 1 ? `${run.name}, ${keys[0]}` : run.name;
    this.file = fileName({ keys: selection.keys, form: "png" }, run.name).replace(/\.png$/, "");
    this.chart = new Chart({ title, by, from, to, load, onZoom: this.onZoom },
      AbortSignal.any([this.signal, this.chartController.signal]));
    const rankNote = onlyLowestRank && h("p.quiet", {}, "Showing the lowest rank. Select ranks to show others.");
    this.chartBox.replaceChildren(...[rankNote, this.chart.root].filter(Boolean));
  }

  async #png() {
    try {
      save(await this.chart.png(), this.file);
      setText(this.status, "");
    } catch (problem) {
      setText(this.status, problem.message);
    }
  }
}

// Returns lines labeled with their keys, and with ranks and attempts if there are several.
function toLines(series, keys) {
  const several = (name) => new Set(series.map((item) => item[name])).size > 1;
  const [ranks, attempts] = [several("rank"), several("attempt")];
  const numbers = new Map();
  return series.filter((item) => item.points.length).map((item) => {
    const { key, rank, attempt } = item;
    const number = numbers.get(key) ?? 0;
    numbers.set(key, number + 1);
    const label = [key, ranks && `rank ${rank}`, attempts && `attempt ${attempt}`].filter(Boolean).join(", ");
    return { label, index: keys.length === 1 ? number : keys.indexOf(key) + MAX_LINES * number,
      points: withDetails(item) };
  });
}
