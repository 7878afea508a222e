// What a run's keys came to, and which values of them are better.

import { isLoss } from "/static/run/words.js";
import { real } from "/static/words.js";

const LOW = /^(loss(es)?|errors?|err|perplexity|ppl|nll|mae|mse|rmse|wer|cer|fid|time|duration|seconds|sec|ms|latency|wait)$/;
const HIGH = /^(accuracy|acc|top1|top5|scores?|f1|bleu|rouge|auc|precision|recall|iou|dice|psnr|ssim|reward|throughput|mfu)$/;
const EVALUATION = /(^|[/_.])(eval|evaluation|val|valid|validation|dev|test)([/_.]|$)/i;

// Of each key of a run's lowest rank { last, min, max }, its attempts as one; values as the API gives them.
export function sums(run) {
  const lowest = run.metrics.reduce((low, one) => Math.min(low, one.rank), Infinity);
  const found = new Map();
  for (const one of run.metrics.filter((each) => each.rank === lowest)) {
    const before = found.get(one.key);
    const pick = (choose, name) => {
      const finite = [before?.[name], one[name]].filter((value) => value !== undefined && value !== null && !Number.isNaN(real(value)));
      return finite.length ? finite.reduce((some, other) => (choose(real(some), real(other)) === real(some) ? some : other)) : one[name];
    };
    found.set(one.key, { last: one.last, min: pick(Math.min, "min"), max: pick(Math.max, "max") });
  }
  return found;
}

// The keys that at least so many runs have, losses first, those of evaluation after the others, then by name.
export function common(all, least) {
  const counts = new Map();
  for (const key of all.flatMap((one) => [...one.keys()])) counts.set(key, (counts.get(key) ?? 0) + 1);
  const keys = [...counts].filter(([, count]) => count >= least).map(([key]) => key);
  const order = (key) => (isLoss(key) ? Number(EVALUATION.test(key)) : 2);
  return keys.sort((one, other) => order(one) - order(other) || one.localeCompare(other));
}

// Whether less or more is better, by the words of the key, as `trackside compare` has it; undefined where they do not say.
export function better(key) {
  const words = (key.match(/[A-Z]?[a-z]+\d?|[A-Z]+\d?/g) ?? []).map((word) => word.toLowerCase());
  if (words.some((word) => LOW.test(word))) return "less";
  return words.some((word) => HIGH.test(word)) ? "more" : undefined;
}

// The places of the best of some values; none where not at least two can be told apart.
export function best(key, values) {
  const wanted = better(key);
  const known = values.map(real).filter(Number.isFinite);
  if (!wanted || known.length < 2 || new Set(known).size < 2) return [];
  const top = wanted === "less" ? Math.min(...known) : Math.max(...known);
  return values.flatMap((value, place) => (real(value) === top ? [place] : []));
}
