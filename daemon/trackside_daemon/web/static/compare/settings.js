// The configuration, code, machine, packages and environment of runs, as rows of which some differ.

import { flatten } from "/static/run/tables.js";

const ATTEMPT_FIELDS = [
  ["git_commit", "Commit"],
  ["host", "Host"],
  ["world_size", "World size"],
  ["total_steps", "Total steps"],
  ["framework", "Framework"],
  ["python", "Python"],
  ["platform", "Platform"],
  ["job_id", "Job"],
  ["k8s_pod", "Pod"],
  ["command", "Command"],
  ["directory", "Directory"],
];

// Returns groups [title, rows] of rows { name, values, differs }; a value is a text, or undefined if the run has none.
export function settings(runs) {
  const lastAttempts = runs.map((run) => run.attempt_list.at(-1) ?? {});
  const configs = runs.map((run) => run.attempt_list.findLast((item) => item.config !== null && item.config !== undefined)?.config);
  const flattened = (values) => values.map((value) => new Map(flatten(value)));
  const named = (field) => lastAttempts.map((item) => new Map(Object.entries(item[field] ?? {})));
  return [
    ["Configuration", table(flattened(configs))],
    ["Code and machine", [...table(lastAttempts.map(attemptValues)), ...table(flattened(lastAttempts.map((item) => item.hardware)))]],
    ["Packages", table(named("packages")).sort((a, b) => a.name.localeCompare(b.name))],
    ["Environment", table(named("environ")).sort((a, b) => a.name.localeCompare(b.name))],
  ];
}

function attemptValues(attempt) {
  const result = new Map();
  for (const [name, title] of ATTEMPT_FIELDS) {
    const value = attempt[name];
    if (value === undefined || value === null || value === "" || value.length === 0) continue;
    result.set(title, Array.isArray(value) ? value.join(" ") : value);
  }
  if (result.has("Commit")) result.set("Commit", `${result.get("Commit").slice(0, 10)}${attempt.git_dirty ? " + changes" : ""}`);
  return result;
}

function table(valuesByRun) {
  const names = [...new Set(valuesByRun.flatMap((item) => [...item.keys()]))];
  return names.map((name) => {
    const values = valuesByRun.map((item) => (item.has(name) ? text(item.get(name)) : undefined));
    return { name, values, differs: values.some((value) => value !== values[0]) };
  });
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
