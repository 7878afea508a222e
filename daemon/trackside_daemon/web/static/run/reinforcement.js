// Reinforcement learning: a chart of each quantity, under one name in all frameworks, and what the ranks do.

import { getSeries } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { h, setText, syncRows, rerender, fold } from "/static/dom.js";
import { number, percent, real } from "/static/format.js";
import { timeTable } from "/static/run/tables.js";

const NAMES = {
  ...{ reward: "Reward", reward_std: "Spread of the rewards", kl: "KL divergence", entropy: "Entropy",
    response_length: "Response length" },
  ...{ truncated_ratio: "Responses that the limit cuts", zero_variance_ratio: "Groups with equal rewards" },
  ...{ train_inference_mismatch: "Difference of training and generation", importance_ratio: "Importance ratio" },
};
const SHARES = new Set(["truncated_ratio", "zero_variance_ratio"]);
const ROLES = { generate: "generation", reward: "rewards", train: "updates", weight_sync: "weight synchronization",
  wait: "waits for samples" };
const CHART_SETTINGS = ["by", "smooth", "log", "marks", "from", "to"];

export class Reinforcement {
  constructor(/** @type {Run} */ run, /** @type {RunSelection} */ selection, onZoom, signal) {
    this.id = run.id;
    this.selection = selection;
    this.onZoom = onZoom;
    this.signal = signal;
    this.charts = new Map();
    this.marks = [];
    this.note = h("span.quiet");
    this.grid = h("div.charts");
    this.roles = h("div");
    this.root = fold("Reinforcement learning", { hidden: true }, [this.note], this.grid, this.roles);
  }

  update({ reinforcement: found }) {
    this.root.hidden = !found;
    if (!found) return;
    syncRows(this.grid, Object.entries(found.quantities), ([name, { key }]) => `${name} ${key}`,
      (item) => this.#chart(item).root);
    const byRole = Object.entries(found.roles).sort(([, a], [, b]) => b - a)
      .map(([role, seconds]) => [ROLES[role], seconds]);
    const share = found.roles.generate / byRole.reduce((sum, [, seconds]) => sum + seconds, 0);
    setText(this.note, byRole.length ? `${percent(share)} of the time is generation` : "");
    this.roles.hidden = !byRole.length;
    rerender(this.roles, JSON.stringify(byRole), () => timeTable(byRole, "Role", "Time by role"));
  }

  // Applies changed settings of the charts.
  set(changes) {
    if (changes.marks) this.marks = changes.marks;
    const changed = CHART_SETTINGS.filter((name) => name in changes);
    const settings = Object.fromEntries(
      changed.map((name) => [name, name === "marks" ? this.marks : this.selection[name]]));
    for (const chart of this.charts.values()) {
      if (Object.keys(settings).length) chart.set(settings);
      if ("attempt" in changes) chart.reload();
    }
  }

  // Reloads the charts that are visible and end now.
  refresh() {
    if (this.selection.to !== undefined) return;
    for (const chart of this.charts.values()) chart.refresh();
  }

  #chart([name, { key, factor }]) {
    const { by, smooth, log, from, to } = this.selection;
    const shares = SHARES.has(name)
      ? { format: (value) => percent(real(value)), range: [0, 1] } : { format: (value) => number(value) };
    const load = async ({ by: axis, from: begin, to: end, points, signal }) => {
      const wanted = { run: this.id, key, by: axis, from: begin, to: end, points, attempt: this.selection.attempt };
      const series = await getSeries(wanted, signal);
      return series.map((item, index) =>
        ({ label: series.length > 1 ? `attempt ${item.attempt}` : key, index, points: scaled(item.points, factor) }));
    };
    const settings = { title: NAMES[name], by, smooth, log, from, to, marks: this.marks, sync: "run", load,
      onZoom: this.onZoom, ...shares };
    this.charts.set(name, new Chart(settings, this.signal));
    return this.charts.get(name);
  }
}

// Returns points whose values are multiplied by a factor, which is negative for a loss that stands for its opposite.
function scaled(points, factor) {
  if (factor === 1) return points;
  return points.map(([step, time, low, high, last]) =>
    [step, time, ...[high, low, last].map((value) => factor * real(value))]);
}
