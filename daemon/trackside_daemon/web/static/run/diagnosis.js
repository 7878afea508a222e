// Where the time of a run went, what cost most, and what to try.

import { timeTable } from "/static/run/tables.js";
import { DIAGNOSIS_MS, isDue } from "/static/polling.js";
import { getJson, runPath } from "/static/api.js";
import { h, setText, ENDED, rerender, fold, withCode } from "/static/dom.js";
import { percent, span } from "/static/format.js";

const JOULES_PER_KWH = 3.6e6;

export class Diagnosis {
  // `onFound` is called with each diagnosis.
  constructor(run, signal, onFound = (_found) => {}) {
    this.id = run.id;
    this.signal = signal;
    this.onFound = onFound;
    this.note = h("span.quiet");
    this.body = h("div.run-diagnosis");
    this.root = fold("Diagnosis", { ontoggle: () => this.loadedAt && this.#load() }, [this.note], this.body);
  }

  update(/** @type {Run} */ run) {
    const ended = ENDED.has(run.state);
    const due = !this.loadedAt || (this.root.open && this.root.checkVisibility() && isDue(this.loadedAt, DIAGNOSIS_MS));
    if (ended ? !this.ended || !this.loadedAt : due) this.#load();
    this.ended = ended;
  }

  async #load() {
    if (this.loading) return;
    this.loading = true;
    try {
      const found = await getJson(`${runPath(this.id)}/diagnosis`, this.signal);
      found.causes = found.causes.filter((item) => item.listed);
      const first = found.causes[0]?.summary ?? "nothing cost more than 5 % of the time or a minute";
      const note = found.verdict || first;
      rerender(this.note, note, () => withCode(note));
      this.onFound(found);
      if (this.root.open) rerender(this.body, JSON.stringify(found), () => content(found));
      this.loadedAt = performance.now();
    } catch (problem) {
      if (!this.signal.aborted) setText(this.note, problem.message);
    }
    this.loading = false;
  }
}

function content(found) {
  const unknown = found.unknown.map(({ what, why }) => h("li", {}, h("b", {}, what), ": ", withCode(why)));
  const advice = found.suggestions.map((item) => h("li", {}, h("b", {}, item.summary), `: ${item.advice}`));
  const { conclusion } = found.comparison;
  const effects = found.comparison.effects.filter((item) => item.ratio !== null).map(effect);
  if (conclusion) effects.push(h("li", {}, h("b", {}, "slower steps"), `: ${conclusion}`));
  const findings = [
    h("ol.run-causes", {}, found.causes.map((item) => cause(item, found.costs))),
    h("p.quiet", {}, [energy(found.energy), money(found.costs)].filter(Boolean).join(" · ")),
    list("For the next run", advice),
    list(`Against ${found.comparison.baseline.join(", ")}`, effects),
    list("What is not known", unknown),
  ];
  return [found.wall_seconds > 0 ? ledger(found) : "", h("div", {}, findings)].filter(Boolean);
}

function list(title, items) {
  return items.length ? h("section", {}, h("h3", {}, title), h("ul", {}, items)) : "";
}

function effect({ quantity, ratio, low, high }) {
  const sign = (value) => `${value > 1 ? "+" : ""}${percent(value - 1)}`;
  return h("li", {}, `${quantity} ${sign(ratio)}${low === null ? "" : ` (${sign(low)} to ${sign(high)})`}`);
}

// Returns the accounts of the time.
export function ledger({ ledger: seconds, accounts, wall_seconds: wall }) {
  const times = Object.entries(seconds).map(([name, value]) => [accounts[name] ?? name, value]);
  return timeTable(times, "Account", "Where the time went", wall);
}

function cause(item, { currency }) {
  const gain = item.lost_seconds === null
    ? "" : `Expected gain: ${item.low > 0 ? `${span(item.low)} to` : "up to"} ${span(item.high)}`;
  const cost = item.cost === null ? "" : `, at most ${item.cost.toFixed(2)} ${currency}`;
  return h("li.card", {},
    h("h3", {}, withCode(item.summary)),
    gain ? h("p", {}, gain, cost) : "",
    h("ul", {}, item.evidence.map(evidence)),
    h("p", {}, h("b", {}, "Try: "), withCode(item.advice)),
    h("p.quiet", {}, "Check: ", withCode(item.check)));
}

// A piece of evidence is a text with the path of what it comes from in the API: an alert has a page.
function evidence({ text, path }) {
  const [, page] = /(?:^|\/)(alerts\/\d+)$/.exec(path) ?? [];
  return h("li", { title: path }, page ? h("a", { href: `/${page}` }, withCode(text)) : withCode(text));
}

function energy({ gpu_joules: gpu, cpu_joules: cpu }) {
  const kwh = (joules) => (joules === null ? "unknown" : `${(joules / JOULES_PER_KWH).toPrecision(3)} kWh`);
  return gpu === null && cpu === null ? "" : `Energy: GPUs ${kwh(gpu)}, CPUs ${kwh(cpu)}`;
}

function money({ gpu_cost: gpu, energy_cost: energyCost, currency, source }) {
  const parts = [["GPUs", gpu], ["energy", energyCost]].filter(([, value]) => value !== null)
    .map(([name, value]) => `${name} ${value.toFixed(2)} ${currency}`);
  return parts.length ? `Cost: ${parts.join(", ")}${source ? ` (${source})` : ""}` : "";
}
