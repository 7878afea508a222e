// Keys and rank numbers on a run's page.

import { HIGHER_IS_BETTER, LOSS_BEGINS, LOSS_ENDS, LOWER_IS_BETTER, SPREAD } from "/static/vocabulary.js";

// Returns true for a loss, by trackside's patterns: loss, */loss, *_loss, loss/*.
export function isLoss(key) {
  return key === "loss" || LOSS_ENDS.some((end) => key.endsWith(end)) || key.startsWith(LOSS_BEGINS);
}

// Returns whether less or more is better, by the words of the key and the rules of `trackside compare`, or undefined.
export function betterDirection(key) {
  const words = (key.match(/[A-Z]?[a-z]+\d?|[A-Z]+\d?/g) ?? []).map((word) => word.toLowerCase());
  const has = (list) => words.some((word) => list.includes(word));
  if (has(SPREAD)) return undefined;
  if (has(LOWER_IS_BETTER)) return "less";
  return has(HIGHER_IS_BETTER) ? "more" : undefined;
}

const EVALUATION = "(?:eval|evaluation|val|valid|validation|dev|test)";

export const isEvaluation = (key) => new RegExp(`(^|[/_.])${EVALUATION}([/_.]|$)`, "i").test(key);

// Returns the key of the evaluation of each key that has one: eval/loss is that of train/loss, or else of loss.
export function twins(keys) {
  const found = new Map();
  for (const key of keys) {
    const [, name] = new RegExp(`^${EVALUATION}[/_.](.+)$`).exec(key) ?? [];
    const trained = name && [`train/${name}`, `train_${name}`, name].find((item) => keys.includes(item));
    if (trained && !found.has(trained)) found.set(trained, key);
  }
  return found;
}

// Formats rank numbers in short form: 0, 1, 2, 5 are "0–2, 5".
export function ranges(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const result = [];
  for (const number of sorted) {
    const last = result.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else result.push([number, number]);
  }
  return result.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}

// Returns a filter of keys in the language of queries: words, of which | or , separates alternatives, /patterns/, and
// - before what to leave out. A pattern that cannot be read yet, while it is typed, matches every key.
export function keyFilter(text) {
  const tests = text.split(/\s+/).filter(Boolean).map((term) => {
    const isNegative = term.length > 1 && term.startsWith("-");
    const word = isNegative ? term.slice(1) : term;
    const parts = word.toLowerCase().split(/[|,]/).filter(Boolean);
    const matches = /^\/.+\/$/.test(word) ? patternTest(word.slice(1, -1))
      : (key) => parts.some((part) => key.toLowerCase().includes(part));
    return (key) => matches(key) !== isNegative;
  });
  return (key) => tests.every((matches) => matches(key));
}

function patternTest(source) {
  try {
    const pattern = new RegExp(source, "i");
    return (key) => pattern.test(key);
  } catch {
    return () => true;
  }
}
