// The losses of the live runs in one large chart.

import { getJson, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { zoomReset } from "/static/charts/interaction.js";
import { withDetails } from "/static/charts/lines.js";
import { h } from "/static/dom.js";
import { LOSSES } from "/static/vocabulary.js";
import { labels } from "/static/picker.js";

const MOST_RUNS = 8;
const HEIGHT = 280;

export function lossChart(signal) {
  let runs = [];
  let shown = "";
  const chart = new Chart({ title: "Loss of the live runs", robust: true, height: HEIGHT,
    onZoom: (from, to) => reset.update(from, to), load: (request) => load(runs, request) }, signal);
  const reset = zoomReset(() => chart.zoom());
  chart.tools.prepend(reset.button);
  const root = h("section.overview-loss", { hidden: true, "aria-label": "Loss" }, chart.root);
  return {
    root,
    update(live) {
      runs = live.filter((run) => run.loss !== undefined).slice(0, MOST_RUNS);
      root.hidden = !runs.length;
      const now = runs.map((run) => run.id).join();
      if (now !== shown) chart.reload();
      else chart.refresh();
      shown = now;
    },
  };
}

async function load(runs, { by, from, to, points, signal }) {
  if (!runs.length) return [];
  const { series } = await getJson(
    `series?${query({ run: runs.map((run) => run.id), key: LOSSES, by, from, to, points, mean: true })}`, signal);
  const names = labels(runs);
  return runs.flatMap((run, index) => {
    const own = series.filter((item) => item.run === run.id && item.attempt === run.attempt && item.points.length);
    const item = LOSSES.map((key) => own.find((each) => each.key === key)).find(Boolean);
    return item ? [{ label: names[index], index, points: withDetails(item) }] : [];
  });
}
