// Last, lowest and highest values of a run's keys, and which values are better.

import { HIGHER_IS_BETTER, LOWER_IS_BETTER, SPREAD } from "/static/vocabulary.js";
import { isLoss } from "/static/run/keys.js";
import { real } from "/static/format.js";

const EVALUATION = /(^|[/_.])(eval|evaluation|val|valid|validation|dev|test)([/_.]|$)/i;

// Returns { last, min, max } of each key of a run's lowest rank, over all attempts; values as in the API.
export function keySummaries(run) {
  const lowest = run.metrics.reduce((low, metric) => Math.min(low, metric.rank), Infinity);
  const summaries = new Map();
  for (const metric of run.metrics.filter((item) => item.rank === lowest)) {
    const previous = summaries.get(metric.key);
    const pick = (choose, name) => {
      const finite = [previous?.[name], metric[name]].filter((value) =>
        value !== undefined && value !== null && !Number.isNaN(real(value)));
      if (!finite.length) return metric[name];
      return finite.reduce((kept, other) => (choose(real(kept), real(other)) === real(kept) ? kept : other));
    };
    summaries.set(metric.key, { last: metric.last, min: pick(Math.min, "min"), max: pick(Math.max, "max") });
  }
  return summaries;
}

// Returns the keys that at least `minimum` runs have: losses first, evaluation losses after the others, then by name.
export function sharedKeys(all, minimum) {
  const counts = new Map();
  for (const key of all.flatMap((metric) => [...metric.keys()])) counts.set(key, (counts.get(key) ?? 0) + 1);
  const keys = [...counts].filter(([, count]) => count >= minimum).map(([key]) => key);
  const order = (key) => (isLoss(key) ? Number(EVALUATION.test(key)) : 2);
  return keys.sort((a, b) => order(a) - order(b) || a.localeCompare(b));
}

// Returns whether less or more is better, by the words of the key and the rules of `trackside compare`, or undefined.
export function betterDirection(key) {
  const words = (key.match(/[A-Z]?[a-z]+\d?|[A-Z]+\d?/g) ?? []).map((word) => word.toLowerCase());
  const has = (list) => words.some((word) => list.includes(word));
  if (has(SPREAD)) return undefined;
  if (has(LOWER_IS_BETTER)) return "less";
  return has(HIGHER_IS_BETTER) ? "more" : undefined;
}

// Returns the indexes of the best values; empty unless at least two values differ.
export function bestIndexes(key, values) {
  const direction = betterDirection(key);
  const numbers = values.map(real).filter(Number.isFinite);
  if (!direction || numbers.length < 2 || new Set(numbers).size < 2) return [];
  const top = direction === "less" ? Math.min(...numbers) : Math.max(...numbers);
  return values.flatMap((value, index) => (real(value) === top ? [index] : []));
}
