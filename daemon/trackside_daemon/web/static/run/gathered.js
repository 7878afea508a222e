// What several charts ask at the same moment for the same window, as one question for several keys.

import { ask, query } from "/static/api.js";

const MOMENT = 10; // Milliseconds.

export class Gathered {
  constructor(signal) {
    Object.assign(this, { signal, waiting: new Map() });
  }

  // The series of a key; `wanted` is the rest of the question, and `most` how many keys one may have.
  async series(key, wanted, most) {
    const rest = query(wanted);
    if (!(this.waiting.get(rest)?.keys.length < most)) this.waiting.set(rest, this.#begun(rest));
    const { keys, answer } = this.waiting.get(rest);
    keys.push(key);
    const { series } = await answer;
    return series.filter((one) => one.key === key);
  }

  #begun(rest) {
    const mine = { keys: [] };
    mine.answer = new Promise((resolve) => setTimeout(resolve, MOMENT)).then(() => {
      if (this.waiting.get(rest) === mine) this.waiting.delete(rest);
      return ask(`series?${rest}&${query({ key: mine.keys })}`, { signal: this.signal });
    });
    return mine;
  }
}
