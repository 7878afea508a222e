// A file of a run's samples: how many it has, about how large it is, and how it comes.

import { fetchApi, query, reached } from "/static/api.js";

export const FORMS = {
  csv: ["CSV", "A line a push, a column a key, for a table."],
  json: ["JSON", "One document: the run, its series, events and alerts."],
  jsonl: ["JSONL", "A line of JSON for the run, each push, event and alert."],
};
export const LARGEST = 512 * 1024 ** 2; // A browser holds a file in memory until it is whole.

// The question of a choice { run, keys, ranks, attempt, by, from, to, form }.
export function path({ run, keys, ranks, attempt, by, from, to, form }) {
  const window = from !== undefined || to !== undefined ? { by, from, to } : {};
  return `runs/${encodeURIComponent(run)}/export?${query({ format: form, key: keys, rank: ranks, attempt, ...window })}`;
}

export async function count(choice, signal) {
  const answer = await fetchApi(path(choice), { method: "HEAD", signal });
  return Number(answer.headers.get("X-Trackside-Samples"));
}

// About so many bytes: a line has its rank, step and time, and of each key a value.
export function estimate(samples, keys, form) {
  const lines = samples / Math.max(1, keys.length);
  const names = keys.reduce((sum, key) => sum + key.length + 4, 0);
  if (form === "csv") return 32 * lines + 19 * samples;
  return form === "json" ? 46 * samples : (78 + names) * lines + 18 * samples;
}

// What a file system takes, with the ending.
export function fileName({ keys, form }, name) {
  const parts = [name, ...(keys.length === 1 ? keys : [])].map((one) => one.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[.-]+|[.-]+$/g, ""));
  return `${[...parts.filter(Boolean).join("-")].slice(0, 100).join("") || "run"}.${form}`;
}

// The file, told of its bytes as they come; undefined when it is larger than a browser should hold.
export async function fetchFile(choice, told, signal) {
  const answer = await fetchApi(path(choice), { signal });
  const parts = [];
  let size = 0;
  const reader = answer.body.getReader();
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) return new Blob(parts, { type: answer.headers.get("Content-Type") });
    parts.push(value);
    size += value.length;
    told(size);
    if (size > LARGEST) {
      await reader.cancel();
      return undefined;
    }
  }
}
