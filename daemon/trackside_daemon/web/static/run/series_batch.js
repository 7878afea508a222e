// Combines the requests of several charts for the same window into one request for several keys.

import { getJson, query } from "/static/api.js";

const DELAY_MS = 10; // Requests within this time are combined.

export class SeriesBatch {
  constructor(signal) {
    this.signal = signal;
    this.waiting = new Map();
  }

  // Resolves to the series of a key. `params` are the other parameters, and `maxKeys` limits the keys of one request.
  async series(key, params, maxKeys) {
    const rest = query(params);
    if (!(this.waiting.get(rest)?.keys.length < maxKeys)) this.waiting.set(rest, this.#start(rest));
    const { keys, answer } = this.waiting.get(rest);
    keys.push(key);
    const { series } = await answer;
    return series.filter((item) => item.key === key);
  }

  #start(rest) {
    const batch = { keys: [] };
    batch.answer = new Promise((resolve) => setTimeout(resolve, DELAY_MS)).then(() => {
      if (this.waiting.get(rest) === batch) this.waiting.delete(rest);
      return getJson(`series?${rest}&${query({ key: batch.keys })}`, this.signal);
    });
    return batch;
  }
}
