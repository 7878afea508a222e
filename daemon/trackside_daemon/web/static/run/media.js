// Images, texts and tables that the training code logged, for each name a slider over its steps; and that code itself.

import { fetchApi, getJson, runPath } from "/static/api.js";
import { h, setText, svg, syncRows, ENDED, fold, scrollable, table } from "/static/dom.js";
import { number, plural, when } from "/static/format.js";

const CACHED = 40; // Contents of a series that are kept, so that the slider moves at once.
const CODE = "trackside/code";

export class Media {
  constructor(/** @type {Run} */ run, signal) {
    this.id = run.id;
    this.signal = signal;
    this.parts = ["Media", "Code"].map((name) => ({ root: fold(name, { hidden: true }, [], h("div.media")) }));
    this.root = this.parts[0].root;
  }

  async update(/** @type {Run} */ run) {
    if (this.loaded && ENDED.has(run.state) && this.state === run.state) return;
    try {
      const { media } = await getJson(`${runPath(this.id)}/media`, this.signal);
      this.loaded = true;
      this.state = run.state;
      for (const { root } of this.parts) {
        const items = media.filter(({ key }) => (key === CODE) === (root !== this.root));
        root.hidden = !items.length;
        const series = Map.groupBy(items, ({ kind, key, rank }) => JSON.stringify([kind, key, rank]));
        syncRows(root.lastChild, [...series.values()], ([first]) => `${first.kind} ${first.key} ${first.rank}`,
          ([first]) => new Series(this.id, first, this.signal).root);
      }
    } catch {
      // The frame reports the outage; the next update tries again.
    }
  }
}

class Series {
  constructor(run, first, signal) {
    this.run = run;
    this.first = first;
    this.signal = signal;
    this.items = [];
    this.contents = new Map();
    this.followed = true;
    const name = `${first.key}${first.rank ? `, rank ${first.rank}` : ""}`;
    this.slider = h("input",
      { type: "range", min: 0, step: 1, "aria-label": `Step of ${name}`, oninput: () => {
        this.followed = Number(this.slider.value) === this.items.length - 1;
        this.#show();
      } });
    this.place = h("span.quiet");
    this.body = h("div.media-body");
    this.root = h("section.card", { "aria-label": name }, h("h3", {}, name), this.body,
      h("div.media-slider", {}, this.slider, this.place));
    this.root.update = (items) => this.update(items);
    signal.addEventListener("abort", () => this.contents.forEach((content) => content.close?.()), { once: true });
  }

  // Shows the newest item, unless the slider was moved to an earlier one.
  update(items) {
    this.items = items;
    this.slider.max = items.length - 1;
    if (this.followed) this.slider.value = items.length - 1;
    this.slider.hidden = items.length < 2;
    this.#show();
  }

  async #show() {
    const item = this.items[this.slider.value];
    const step = item.step === undefined ? "" : `step ${number(item.step)}`;
    const text = [step, item.attempt && `attempt ${item.attempt}`, when(item.time),
      this.items.length > 1 && `${Number(this.slider.value) + 1} of ${this.items.length}`].filter(Boolean).join(" · ");
    setText(this.place, text);
    this.slider.setAttribute("aria-valuetext", text);
    if (this.shown === item.file) return;
    this.shown = item.file;
    try {
      const content = await this.#content(item);
      if (this.shown === item.file) this.body.replaceChildren(content.element);
    } catch (problem) {
      if (this.shown === item.file) this.body.replaceChildren(h("p.quiet", {}, problem.message));
      this.shown = undefined;
    }
  }

  async #content(item) {
    const known = this.contents.get(item.file);
    if (known) return known;
    const answer = await fetchApi(`${runPath(this.run)}/media/${item.file}`, { signal: this.signal });
    const content = await CONTENTS[item.kind](answer, item);
    this.contents.set(item.file, content);
    if (this.contents.size > CACHED) {
      const [oldest] = this.contents.keys();
      this.contents.get(oldest).close?.();
      this.contents.delete(oldest);
    }
    return content;
  }
}

const CONTENTS = {
  async image(answer, { key, step, width, height }) {
    const address = URL.createObjectURL(await answer.blob());
    const element = h("img",
      { src: address, width, height, alt: `${key}${step === undefined ? "" : `, step ${step}`}` });
    return { element, close: () => URL.revokeObjectURL(address) };
  },
  async text(answer, { key }) {
    return { element: h("pre", { tabindex: 0, role: "region", "aria-label": `Text ${key}` }, await answer.text()) };
  },
  async histogram(answer, { key }) {
    const { edges, counts, nonfinite } = await answer.json();
    const most = Math.max(...counts, 1);
    const width = 100 / counts.length;
    const bars = counts.map((count, place) =>
      svg("rect", { x: place * width, y: 40 - (40 * count) / most, width: 0.9 * width, height: (40 * count) / most },
        svg("title", {}, `${number(edges[place], 4)} to ${number(edges[place + 1], 4)}: ${count}`)));
    const missing = nonfinite ? `, ${nonfinite} NaN or infinite` : "";
    const ends = `${number(edges[0], 4)} to ${number(edges.at(-1), 4)}, at most ${most} in a bin${missing}`;
    const plot = svg("svg.histogram",
      { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": `${key}: ${ends}` }, bars);
    return { element: h("div", {}, plot, h("p.quiet", {}, ends)) };
  },
  async table(answer, { key }) {
    const { columns, rows, omitted } = await answer.json();
    const isNumber = (place) =>
      rows.every((row) => row[place] === null || row[place] === undefined || typeof row[place] === "number");
    const heads = columns.map((name, place) => [name, isNumber(place) ? "number" : ""]);
    const body = rows.map((row) =>
      h("tr", {}, columns.map((_, place) => h(isNumber(place) ? "td.number" : "td.text", {},
        typeof row[place] === "number" ? number(row[place]) : String(row[place] ?? "")))));
    const rest = omitted > 0 ? h("p.quiet", {}, `${plural(omitted, "more row")}.`) : "";
    return { element: scrollable(`Table ${key}`, table(heads, body), rest) };
  },
};
