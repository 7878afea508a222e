// The configuration, code, machine, packages and environment of runs, as rows of which some differ.

import { plain } from "/static/format.js";
import { flatten, settingsOf } from "/static/run/tables.js";

const ATTEMPT_FIELDS = [
  ["command", "Command"],
  ["git_commit", "Commit"],
  ["host", "Host"],
  ["world_size", "World size"],
  ["total_steps", "Total steps"],
  ["framework", "Framework"],
  ["python", "Python"],
  ["platform", "Platform"],
  ["job_id", "Job"],
  ["k8s_pod", "Pod"],
  ["directory", "Directory"],
];

// Returns groups [title, rows]; a value is undefined if it is unknown, which is no difference.
/** @returns {[string, { name: string, values: string[], differs: boolean }[]][]} */
export function settings(runs) {
  const lastAttempts = runs.map((run) => run.attempt_list.at(-1) ?? {});
  const named = (field) => lastAttempts.map((item) => new Map(Object.entries(item[field] ?? {})));
  const [about, command] = [table(lastAttempts.map(attemptValues)), argumentsOf(lastAttempts)];
  return [
    ["Configuration", table(runs.map(settingsOf))],
    ["Command line", command],
    ["Code and machine", [...about, ...table(lastAttempts.map((item) => new Map(flatten(item.hardware))))]],
    ["Packages", table(named("packages")).sort((a, b) => a.name.localeCompare(b.name))],
    ["Environment", table(named("environ")).sort((a, b) => a.name.localeCompare(b.name))],
  ];
}

// The arguments of the command lines by name: --lr 3e-4 and --lr=3e-4 are lr.
function argumentsOf(attempts) {
  const parsed = attempts.map(({ command = [] }) => {
    const found = new Map();
    command.forEach((word, index) => {
      const [, name, value] = /^--?([\w.-]+)(?:=(.*))?$/.exec(word) ?? [];
      if (!name || /^\d/.test(name)) return;
      const next = command[index + 1];
      found.set(`--${name}`, value ?? (next !== undefined && !next.startsWith("--") ? next : "set"));
    });
    return found;
  });
  return table(parsed);
}

function attemptValues(attempt) {
  const result = new Map();
  for (const [name, title] of ATTEMPT_FIELDS) {
    const value = attempt[name];
    if (value === undefined || value === null || value === "" || value.length === 0) continue;
    result.set(title, Array.isArray(value) ? value.join(" ") : value);
  }
  if (result.has("Commit"))
    result.set("Commit", `${result.get("Commit").slice(0, 10)}${attempt.git_dirty ? " + changes" : ""}`);
  return result;
}

function table(valuesByRun) {
  const names = [...new Set(valuesByRun.flatMap((item) => [...item.keys()]))];
  return names.map((name) => {
    const values = valuesByRun.map((item) => (item.has(name) ? plain(item.get(name)) : undefined));
    const known = values.filter((value) => value !== undefined);
    return { name, values, differs: known.some((value) => value !== known[0]) };
  });
}
