// What runs were started with: configuration, code, machine and packages, as rows of which some differ.

import { flat } from "/static/run/tables.js";

const ABOUT = [
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

// Groups [title, rows] of rows { name, values, differs }; a value is a text, or undefined where a run has none.
export function settings(runs) {
  const lasts = runs.map((run) => run.attempt_list.at(-1) ?? {});
  const configs = runs.map((run) => run.attempt_list.findLast((one) => one.config !== null && one.config !== undefined)?.config);
  const named = (values) => values.map((value) => new Map(flat(value)));
  const packages = lasts.map((one) => new Map(Object.entries(one.packages ?? {})));
  return [
    ["Configuration", table(named(configs))],
    ["Code and machine", [...table(lasts.map(about)), ...table(named(lasts.map((one) => one.hardware)))]],
    ["Packages", table(packages).sort((one, other) => one.name.localeCompare(other.name))],
  ];
}

function about(attempt) {
  const found = new Map();
  for (const [name, title] of ABOUT) {
    const value = attempt[name];
    if (value === undefined || value === null || value === "" || value.length === 0) continue;
    found.set(title, Array.isArray(value) ? value.join(" ") : value);
  }
  if (found.has("Commit")) found.set("Commit", `${found.get("Commit").slice(0, 10)}${attempt.git_dirty ? " + changes" : ""}`);
  return found;
}

function table(all) {
  const names = [...new Set(all.flatMap((one) => [...one.keys()]))];
  return names.map((name) => {
    const values = all.map((one) => (one.has(name) ? text(one.get(name)) : undefined));
    return { name, values, differs: values.some((value) => value !== values[0]) };
  });
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
