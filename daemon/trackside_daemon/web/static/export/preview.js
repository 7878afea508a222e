// Export files: their number of samples, estimated size and download. A chart of the selection.

import { getJson, query, fetchApi, withNetworkErrors, runPath } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { withDetails } from "/static/charts/lines.js";
import { zoomReset } from "/static/charts/interaction.js";
import { h } from "/static/dom.js";

export const FORMATS = {
  csv: ["CSV", "One line per push and one column per key, for spreadsheets."],
  json: ["JSON", "One document: the run, its series, events and alerts."],
  jsonl: ["JSONL", "One line of JSON for the run and for each push, event and alert."],
};
export const MAX_BROWSER_BYTES = 512 * 1024 ** 2; // A browser keeps a file in memory until it is complete.

// Returns the API path of a selection { run, keys, ranks, attempt, by, from, to, form, resources }.
function exportPath({ run, keys, ranks, attempt, by, from, to, form, resources }) {
  const window = from !== undefined || to !== undefined ? { by, from, to } : {};
  const all = { format: form, key: keys, rank: ranks, attempt, ...window, resources: resources ? "true" : "" };
  return `${runPath(run)}/export?${query(all)}`;
}

export async function countSamples(selection, signal) {
  const answer = await fetchApi(exportPath(selection), { method: "HEAD", signal });
  return Number(answer.headers.get("X-Trackside-Samples"));
}

// Estimates a file's size in bytes: a line has its rank, step and time, and a value per key.
export function estimate(samples, keys, form) {
  const lines = samples / Math.max(1, keys.length);
  const names = keys.reduce((sum, key) => sum + key.length + 4, 0);
  if (form === "csv") return 32 * lines + 19 * samples;
  return form === "json" ? 46 * samples : (78 + names) * lines + 18 * samples;
}

// Returns a valid file name with its extension.
export function fileName({ keys, form }, name) {
  const parts = [name, ...(keys.length === 1 ? keys : [])].map((part) =>
    part.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[.-]+|[.-]+$/g, ""));
  return `${[...parts.filter(Boolean).join("-")].slice(0, 100).join("") || "run"}.${form}`;
}

// Downloads a file and reports its size so far; resolves to undefined when it exceeds what a browser should hold.
export async function fetchFile(selection, onProgress, signal) {
  const answer = await fetchApi(exportPath(selection), { signal });
  const parts = [];
  let size = 0;
  const reader = answer.body.getReader();
  for (;;) {
    const { value, done } = await withNetworkErrors(reader.read());
    if (done) return new Blob(parts, { type: answer.headers.get("Content-Type") });
    parts.push(value);
    size += value.length;
    onProgress(size);
    if (size > MAX_BROWSER_BYTES) {
      await reader.cancel();
      return undefined;
    }
  }
}

const MAX_LINES = 8;

export class Preview {
  // `onZoom(from, to)` is called after a zoom.
  constructor(onZoom, signal) {
    this.onZoom = onZoom;
    this.signal = signal;
    this.reset = zoomReset(() => this.chart.zoom());
    this.chartBox = h("div");
    this.root = h("section", {}, h("h2", {}, "Chart"), this.chartBox, h("div.tools", {}, this.reset.button));
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
    if (keys.length > MAX_LINES || !keys.length) {
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
    this.chart = new Chart({ title, by, from, to, load, onZoom: this.onZoom },
      AbortSignal.any([this.signal, this.chartController.signal]));
    const rankNote = onlyLowestRank && h("p.quiet", {}, "Showing the lowest rank. Select ranks to show others.");
    this.chartBox.replaceChildren(...[rankNote, this.chart.root].filter(Boolean));
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
