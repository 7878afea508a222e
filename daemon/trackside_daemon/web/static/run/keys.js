// Keys and rank numbers on a run's page.

import { LOSS_BEGINS, LOSS_ENDS } from "/static/vocabulary.js";

// Returns true for a loss, by trackside's patterns: loss, */loss, *_loss, loss/*.
export function isLoss(key) {
  return key === "loss" || LOSS_ENDS.some((end) => key.endsWith(end)) || key.startsWith(LOSS_BEGINS);
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
