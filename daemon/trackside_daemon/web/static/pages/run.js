// One run: how it is, charts of all it pushed, the machine meanwhile, and what it was begun with.

import { ask, query } from "/static/api.js";
import { Charts } from "/static/run/charts.js";
import { Head } from "/static/run/head.js";
import { Machine } from "/static/run/machine.js";
import { marksOf } from "/static/run/marks.js";
import { phases } from "/static/run/phases.js";
import { attempts, configuration, Metrics } from "/static/run/tables.js";
import { tools } from "/static/run/tools.js";
import { h } from "/static/dom.js";
import { ENDED } from "/static/parts.js";

const OFTEN = 5000; // Milliseconds between two looks at what the stream does not tell;
const RARELY = 15_000; // where it is a megabyte,
const LARGE = 5000; // as so many metrics are.
const MARKED = 500;

export const title = "Run";

export async function show(place) {
  const { signal } = place;
  const look = (id) => ask(`runs/${encodeURIComponent(id)}`, { signal });
  const found = await look(place.parts.join("/"));
  const page = new RunPage(place, found, () => look(found.id));
  return { title: found.name, root: page.root, run: found.id, told: (overview) => page.told(overview), heard: (run) => page.heard(run) };
}

class RunPage {
  constructor(place, run, look) {
    Object.assign(this, { run, look, signal: place.signal, looked: performance.now(), newest: "" });
    this.chosen = tools(place, run, (changes) => this.#changed(changes));
    this.head = new Head(run);
    const zoomed = (from, to) => this.chosen.zoom(from, to);
    this.charts = new Charts(run, this.chosen, zoomed, place.signal);
    this.machine = new Machine(run, this.chosen, zoomed, place.signal);
    this.metrics = new Metrics(this.chosen);
    this.sections = [phases(), configuration(), attempts()];
    const parts = [this.head, this.chosen, this.charts, this.machine, this.metrics, ...this.sections];
    this.root = h("div.run-page", {}, parts.map((one) => one.root));
    this.#show(run);
    this.head.shown(this.chosen, this.charts.filtered);
    this.#mark();
  }

  #show(run) {
    this.run = run;
    this.head.told(run);
    this.chosen.told(run);
    this.charts.told(run);
    this.metrics.told(run);
    for (const one of this.sections) one.told(run);
  }

  #changed(changes) {
    this.charts.set(changes);
    this.machine.set(changes);
    this.metrics.told(this.run);
    this.head.shown(this.chosen, this.charts.filtered);
  }

  // What the overview says of this run, if it lives, and what fires.
  told(overview) {
    const alerts = overview.alerts.filter((one) => one.run === this.run.id);
    this.head.heard({ row: overview.runs.find((one) => one.id === this.run.id), alerts, now: overview.time });
    this.machine.told(overview, this.run);
    this.#again(alerts.length);
  }

  // The newest of every key.
  heard(data) {
    const times = Object.values(data.values).flatMap((ranks) => Object.values(ranks).map((one) => one[1]));
    const newest = `${data.state} ${data.step} ${Math.max(...times)}`;
    if (newest === this.newest) return;
    const changed = this.newest && data.state !== this.run.state;
    this.newest = newest;
    this.head.heard({ newest: data });
    this.charts.heard(data);
    if (changed || Object.keys(data.values).some((key) => !this.charts.has(key))) this.#lookAgain();
  }

  #again(firing) {
    const pace = this.run.metrics.length > LARGE ? RARELY : OFTEN;
    const due = performance.now() - this.looked > pace && !ENDED.has(this.run.state) && !document.hidden;
    if (due || firing !== (this.firing ?? firing)) this.#lookAgain();
    this.firing = firing;
  }

  async #lookAgain() {
    if (this.looking) return;
    this.looking = true;
    try {
      this.#show(await this.look());
      await this.#mark();
    } catch {
      // The frame says that the daemon does not answer; the next news look again.
    }
    this.looked = performance.now();
    this.looking = false;
  }

  async #mark() {
    const asked = query({ run: this.run.id, limit: MARKED });
    const [{ events }, { alerts }] = await Promise.all(["events", "alerts"].map((kind) => ask(`${kind}?${asked}`, { signal: this.signal })));
    const marks = marksOf(events, alerts);
    const cut = Object.entries({ events, alerts }).flatMap(([kind, list]) => (list.length < MARKED ? [] : [`Only the newest ${MARKED} ${kind} are marked.`]));
    this.charts.set({ marks, cut: cut.join(" ") });
    this.machine.set({ marks });
  }
}
