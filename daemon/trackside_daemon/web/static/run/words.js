// Words that several parts of the page of a run use.

// Whether a key is a loss, by the product's pattern: loss, */loss, *_loss, loss/*.
export function isLoss(key) {
  return /(^|[/_])loss$|^loss\//.test(key);
}

// Numbers of ranks in as few signs as may be: 0, 1, 2, 5 are "0–2, 5".
export function ranges(numbers) {
  const sorted = [...new Set(numbers)].sort((one, other) => one - other);
  const found = [];
  for (const one of sorted) {
    const last = found.at(-1);
    if (last && one === last[1] + 1) last[1] = one;
    else found.push([one, one]);
  }
  return found.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}
