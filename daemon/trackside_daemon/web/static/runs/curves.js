// The loss curves of runs in a list.

import { getSeries } from "/static/api.js";
import { sparkline } from "/static/dom.js";
import { number, real } from "/static/format.js";
import { LOSSES } from "/static/vocabulary.js";

const POINTS = 60;
const MOST_RUNS = 40; // In one request.
const DELAY_MS = 60;

// Returns a small chart of losses; nothing for fewer than two.
export function lossCurve(values) {
  const finite = values.filter(Number.isFinite);
  return finite.length < 2 ? "" : sparkline(values,
    `Loss from ${number(values[0])} to ${number(values.at(-1))}, lowest ${number(Math.min(...finite))}`, 120, 24);
}

// Those of ended runs, loaded for many runs at once.
export class Curves {
  // `onLoad()` is called when more curves are there.
  constructor(onLoad, signal) {
    this.onLoad = onLoad;
    this.signal = signal;
    this.known = new Map();
    this.wanted = new Map();
    signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  get(run) {
    return this.known.get(run.id)?.values;
  }

  // Requests the curves of runs that have none yet, or that have made steps since.
  want(runs) {
    for (const run of runs) if (this.known.get(run.id)?.step !== run.step) this.wanted.set(run.id, run);
    if (!this.wanted.size || this.timer) return;
    this.timer = setTimeout(() => this.#load().catch(() => {}), DELAY_MS);
  }

  async #load() {
    const runs = [...this.wanted.values()].slice(0, MOST_RUNS);
    try {
      const wanted = { run: runs.map((run) => run.id), key: LOSSES, points: POINTS, mean: true };
      const series = await getSeries(wanted, this.signal);
      for (const run of runs) {
        const own = series.filter((item) => item.run === run.id);
        const key = LOSSES.find((name) => own.some((item) => item.key === name));
        const values = own.filter((item) => item.key === key)
          .flatMap(({ points, means }) => points.map((point, index) => real(means?.[index] ?? point[4])));
        this.known.set(run.id, { step: run.step, values });
        this.wanted.delete(run.id);
      }
      this.onLoad();
    } finally {
      this.timer = undefined;
    }
    if (this.wanted.size) this.want([]);
  }
}
