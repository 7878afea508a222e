// Export files: their number of samples, estimated size and download.

import { query, fetchApi, withNetworkErrors, runPath } from "/static/api.js";
import { download } from "/static/dom.js";

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

// Downloads the report of a run, or the chart of a key as SVG.
export async function downloadReport({ id, name }, { format, key = "" }, signal) {
  const answer = await fetchApi(`${runPath(id)}/report/file?${query({ format, key })}`, { signal });
  download(await answer.blob(), fileName({ keys: [key], form: format }, name));
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
