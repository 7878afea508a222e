// What is known of a run as tables: its keys, its configuration, its attempts.

import { h, rows, say } from "/static/dom.js";
import { badge, renew } from "/static/parts.js";
import { isLoss } from "/static/run/words.js";
import { number, plural, span, when } from "/static/words.js";

const MOST = 300; // Rows; the filter finds the others.

function framed(caption, heads, body) {
  const head = heads.map(([text, kind]) => h(`th${kind ? `.${kind}` : ""}`, { scope: "col" }, text));
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": caption }, h("table", {}, h("thead", {}, h("tr", {}, head)), body));
}

export class Metrics {
  constructor(chosen) {
    this.chosen = chosen;
    this.count = h("span.quiet");
    this.place = h("div");
    this.root = h("details.run-section", { open: true }, h("summary", {}, h("h2", {}, "Metrics"), this.count), this.place);
  }

  told({ metrics, attempt_list: list }) {
    const { ranks, attempt, filter } = this.chosen;
    const lowest = metrics.reduce((least, one) => Math.min(least, one.rank), Infinity);
    const text = filter.toLowerCase();
    const mine = (one) => (ranks !== "lowest" || one.rank === lowest) && (attempt === undefined || one.attempt === attempt);
    const wanted = metrics.filter((one) => mine(one) && one.key.toLowerCase().includes(text));
    const places = new Map([...metrics.keys()].reverse().map((place) => [metrics[place].key, place]));
    wanted.sort((one, other) => isLoss(other.key) - isLoss(one.key) || places.get(one.key) - places.get(other.key) || one.rank - other.rank);
    this.root.hidden = !metrics.length;
    say(this.count, wanted.length > MOST ? `the first ${MOST} of ${wanted.length}; search a key above for others` : "");
    const tried = list.length > 1;
    const numbers = [...(tried ? ["Attempt"] : []), "Rank", "Last", "Min", "Max", "Mean", "Count", "Non-finite"];
    const heads = [["Key"], ...numbers.map((name) => [name, "number"])];
    if (heads.length !== this.columns) this.#begin(heads);
    rows(this.body, wanted.slice(0, MOST), (one) => `${one.rank} ${one.attempt} ${one.key}`, (one) => line(one, tried));
  }

  #begin(heads) {
    this.columns = heads.length;
    this.body = h("tbody");
    this.place.replaceChildren(framed("Metrics", heads, this.body));
  }
}

function line(first, tried) {
  const cells = Array.from({ length: tried ? 8 : 7 }, () => h("td.number"));
  const row = h("tr", {}, h("th.name", { scope: "row" }, first.key), cells);
  row.told = (one) => {
    const texts = [...(tried ? [one.attempt] : []), one.rank, number(one.last), number(one.min), number(one.max), number(one.mean), one.count, one.nonfinite];
    texts.forEach((text, place) => say(cells[place], String(text)));
    cells.at(-1).classList.toggle("bad", one.nonfinite > 0);
  };
  return row;
}

// Of nested objects every value with its path: { a: { b: 1 } } is [["a.b", 1]].
export function flat(value, path = "") {
  const nested = value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length;
  if (!nested) return path ? [[path, value]] : [];
  return Object.entries(value).flatMap(([name, inner]) => flat(inner, path ? `${path}.${name}` : name));
}

export function configuration() {
  return section("Configuration", ({ attempt_list: list }) => {
    const last = list.findLast((one) => one.config !== null && one.config !== undefined);
    const under = last && list.length > 1 ? `of attempt ${last.attempt}` : "";
    return { under, of: last?.config, make: () => configured(flat(last?.config ?? {})) };
  });
}

function configured(pairs) {
  if (!pairs.length) return h("p.quiet", {}, "None told. Give it with trackside.init(config={…}).");
  const said = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const lines = pairs.map(([name, value]) => h("tr", {}, h("th.name", { scope: "row" }, name), h("td.text.mono", {}, said(value))));
  return framed("Configuration", [["Name"], ["Value"]], h("tbody", {}, lines));
}

export function attempts() {
  const heads = [["Attempt"], ["State"], ["Started"], ["Took", "number"], ["Host"], ["Commit"], ["Process"]];
  return section("Attempts", ({ attempt_list: list }) => {
    const known = list.map((one) => ({ ...one, phases: undefined }));
    return { under: "", of: known, make: () => framed("Attempts", heads, h("tbody", {}, [...known].reverse().map(attempt))) };
  });
}

function attempt(one) {
  const commit = one.git_commit ? `${one.git_commit.slice(0, 10)}${one.git_dirty ? " + changes" : ""}` : "";
  const state = badge(one.state);
  const lasted = one.ended === null ? "" : span(one.ended - one.started);
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, String(one.attempt)),
    h("td.text", {}, state, one.cause ? h("div.quiet", {}, one.cause) : ""),
    h("td", {}, when(one.started)),
    h("td.number", {}, lasted),
    h("td", {}, one.host ?? ""),
    h("td.mono", { title: one.git_commit }, commit),
    h("td", {}, process(one)),
  );
}

function process(one) {
  const { hardware = {}, packages = {}, command = [] } = one;
  const gpus = hardware.gpus ?? [];
  const kinds = [...new Set(gpus)].map((name) => `${gpus.filter((each) => each === name).length} × ${name}`);
  const facts = [
    ["Command", command.join(" ")],
    ["Directory", one.directory],
    ["Python", [one.python, one.platform].filter(Boolean).join(", ")],
    ["Hardware", [hardware.cpus && plural(hardware.cpus, "CPU"), ...kinds].filter(Boolean).join(", ")],
    ["Packages", Object.entries(packages).map(([name, version]) => `${name} ${version}`).join(", ")],
  ].filter(([, text]) => text);
  if (!facts.length) return "";
  const list = h("dl.facts.run-process", {}, facts.map(([name, text]) => [h("dt", {}, name), h("dd.mono", {}, text)]));
  return h("details", {}, h("summary", {}, "Command, packages"), list);
}

// A part of the page: `of(run)` says what it is made of, and makes it where that is another.
export function section(name, about) {
  const head = h("span.quiet");
  const body = h("div");
  const root = h("details.run-section", { open: true }, h("summary", {}, h("h2", {}, name), head), body);
  const told = (run) => {
    const { under, of, make } = about(run);
    say(head, under);
    renew(body, JSON.stringify(of ?? null), make);
  };
  return { root, told };
}
