// The captures of a run: what was recorded, where the time of its steps went, and what changed since a healthy one.

import { FINAL } from "/static/vocabulary.js";
import { fetchApi, getJson, post, runPath } from "/static/api.js";
import { download, h, setText, syncRows, ENDED, fold, scrollable, table, rerender } from "/static/dom.js";
import { bytes, number, percent, plural, when } from "/static/format.js";
import { CAPTURES_MS, later } from "/static/polling.js";

const MAX_OPERATORS = 12;
const MAX_FUNCTIONS = 8;
const MAX_INNER = 60; // Characters of a call.
const PARTS = {
  compute: "compute", overlapped: "communication during compute", exposed: "communication", copies: "copies",
  data: "data wait", idle: "device idle", other: "other",
};

// By kind: the title and the unit of what has changed, and the summary; that of other kinds is its text.
const KINDS = {
  profile: { changed: "Changed since the healthy reference", amount: (seconds) => `${number(1000 * seconds, 3)} ms`,
    content: profile },
  memory: { changed: "Grown since the last snapshot", amount: bytes },
};

export class Captures {
  constructor(/** @type {Run} */ run, signal) {
    this.id = run.id;
    this.signal = signal;
    const begin = (body) => () => this.#begin(body);
    const buttons = [["Record 10 steps", {}], ["Record with Python stacks", { stacks: true }],
      ["Record memory", { kind: "memory" }]];
    this.buttons = buttons.map(([text, body]) => h("button.small.needs-write", { onclick: begin(body) }, text));
    this.count = h("span.quiet");
    this.status = h("p.quiet", { role: "status" });
    this.list = h("div");
    this.empty = h("p.quiet", { hidden: true }, "No captures yet. A capture of ten steps shows where their time goes: ",
      "operators, copies, waits for data and for other ranks. The training continues meanwhile.");
    const bar = h("div.run-captures-bar", {}, this.buttons);
    this.root = fold("Captures", {}, [this.count], bar, this.status, this.empty, this.list);
  }

  update(/** @type {Run} */ run) {
    const live = !ENDED.has(run.state);
    for (const button of this.buttons) button.hidden = !live;
    this.live = live;
    this.#load();
  }

  async #begin(body) {
    setText(this.status, "");
    try {
      await post(`${runPath(this.id)}/captures`, { ...body, trigger: "person" });
    } catch (problem) {
      setText(this.status, problem.message);
    }
    this.#load();
  }

  async #load() {
    this.cancel?.();
    try {
      const { captures } = await getJson(`${runPath(this.id)}/captures`, this.signal);
      this.root.hidden = !captures.length && !this.live;
      this.empty.hidden = captures.length > 0;
      setText(this.count, captures.length ? plural(captures.length, "capture") : "");
      syncRows(this.list, captures.reverse(), (item) => item.id,
        (item) => new Row(item, this.signal, (text) => setText(this.status, text)).root);
      if (captures.some((item) => !FINAL.includes(item.state))) this.cancel = later(CAPTURES_MS, () => this.#load());
    } catch {
      // The frame reports the outage; the next update tries again.
    }
  }
}

class Row {
  constructor(first, signal, report) {
    this.item = first;
    this.signal = signal;
    this.report = report;
    this.head = h("span");
    this.reason = h("p.quiet");
    this.files = h("p.run-captures-bar");
    this.body = h("div");
    this.root = h("details.card.run-capture", { ontoggle: () => this.#open() }, h("summary", {}, this.head),
      this.reason, this.files, this.body);
    this.root.update = (item) => this.update(item);
  }

  update(item) {
    this.item = item;
    const other = item.trigger === "alert" ? " as the reference" : "";
    const cause = item.cause ? ` for ${item.cause.alert}` : other;
    setText(this.head, `${item.kind.replace("_", " ")}${cause}, ${when(item.asked)}: ${item.state}`);
    setText(this.reason, item.reason);
    rerender(this.files, JSON.stringify(item.files), () => item.files.map((file) => this.#download(file)));
    this.#open();
  }

  #download(file) {
    const get = async () => {
      try {
        const answer = await fetchApi(`captures/${this.item.id}/files/${encodeURIComponent(file.name)}`,
          { signal: this.signal });
        download(await answer.blob(), `${this.item.id}_${file.name}`);
      } catch (problem) {
        this.report(problem.message);
      }
    };
    return h("button.small", { onclick: get }, `Download rank ${file.rank} (${bytes(file.bytes)})`);
  }

  async #open() {
    if (!this.root.open || this.item.state !== "summarised" || this.loaded) return;
    this.loaded = true;
    try {
      const { summary, kind, text } = await getJson(`captures/${this.item.id}`, this.signal);
      const lines = text.slice(1).filter((line) => !line.startsWith("changed: ")).join("\n");
      const content = KINDS[kind]?.content?.(summary) ?? [h("pre", { tabindex: 0, "aria-label": "Summary" }, lines)];
      this.body.replaceChildren(changes(summary, KINDS[kind]), ...content);
    } catch (problem) {
      this.loaded = false;
      this.report(problem.message);
    }
  }
}

// What changed since the reference; empty if there is none, or nothing changed.
function changes({ difference }, kind) {
  if (!difference || !kind) return "";
  const { changed, amount } = kind;
  if (!difference.length) return h("p.quiet", {}, `${changed}: nothing beyond the noise.`);
  const rows = difference.map((item) => {
    const change = item.after - item.before;
    const texts = [amount(item.before), amount(item.after), `${change < 0 ? "−" : "+"}${amount(Math.abs(change))}`,
      item.rank];
    return h("tr", {}, h("th.name", { scope: "row" }, item.name), texts.map((text) => h("td.number", {}, text)),
      h("td.mono", {}, item.source === item.name ? "" : item.source ?? ""));
  });
  return h("div", {}, h("h3", {}, changed),
    grid("Changes", ["What", "Before", "After", "Change", "Rank", "Source"], rows));
}

function profile({ ranks, bottleneck }) {
  const each = Object.entries(ranks).map(([rank, item], index) => rankDetails(rank, item, index === 0));
  return [h("p", {}, h("b", {}, bottleneck?.text ?? "")), legend(), each].flat();
}

function legend() {
  const names = Object.values(PARTS)
    .map((name, index) => h("span", {}, h("span", { class: `run-key phase-${index}` }), name));
  return h("p.run-captures-bar.quiet", { "aria-hidden": "true" }, names);
}

function rankDetails(rank, { steps, operators, functions = [], flame: calls }, open) {
  const longest = Math.max(...steps.map((step) => step.seconds));
  const bars = steps.map((step) => stepBar(step, longest));
  return h("details", { open }, h("summary", {}, `Rank ${rank}, ${plural(steps.length, "step")}`),
    h("div.run-capture-steps", {}, bars), operatorTable(operators), functionTable(functions),
    calls?.children.length ? h("details", {}, h("summary", {}, "Calls of the training thread"), flame(calls)) : "");
}

function stepBar(step, longest) {
  const parts = Object.keys(PARTS).map((part, index) => {
    const element = h("span", { class: `phase-${index}` });
    element.style.flexGrow = (100 * step[part]) / step.seconds; // a sum below 1 would leave a part of the bar empty
    return element;
  });
  const named = Object.entries(PARTS).filter(([part]) => step[part] > 0)
    .map(([part, name]) => `${name} ${percent(step[part] / step.seconds)}`);
  const label = `${number(1000 * step.seconds, 3)} ms: ${named.join(", ")}`;
  const stack = h("div.run-capture-step", { role: "img", "aria-label": label, title: label }, parts);
  stack.style.width = `${(100 * step.seconds) / longest}%`;
  return stack;
}

function operatorTable(operators) {
  const rows = operators.slice(0, MAX_OPERATORS).map(({ name, cpu, gpu, share, count, source, shapes }) => {
    const texts = [number(1000 * cpu, 3), gpu ? number(1000 * gpu, 3) : "", percent(share), number(count, 3)];
    return h("tr", {}, h("th.name", { scope: "row", title: shapes }, name),
      texts.map((text) => h("td.number", {}, text)), h("td.mono", {}, source ?? ""));
  });
  return grid("Operators", ["Operator", "CPU ms a step", "GPU ms a step", "Share", "Calls a step", "Source"], rows);
}

function functionTable(functions) {
  const rows = functions.slice(0, MAX_FUNCTIONS).map(({ name, seconds, share, count, inner }) => {
    const texts = [number(1000 * seconds, 3), percent(share), number(count, 3)];
    return h("tr", {}, h("th", { scope: "row" }, name), texts.map((text) => h("td.number", {}, text)),
      h("td.mono", { title: inner }, inner.slice(0, MAX_INNER)));
  });
  const heads = ["Python function", "ms a step", "Share", "Calls a step", "Mostly in"];
  return rows.length ? grid("Python functions", heads, rows) : "";
}

// A table whose first and last columns are texts.
function grid(label, heads, rows) {
  const columns = heads.map((text, index) => [text, index % (heads.length - 1) ? "number" : ""]);
  return scrollable(label, table(columns, rows));
}

// The calls of a training thread as bars below their callers, as wide as the time that they take; a click enlarges one.
function flame(root) {
  const view = h("div");
  const show = (node) => {
    const back = node === root ? "" : h("button.small", { onclick: () => show(root) }, "Whole step");
    view.replaceChildren(back, h("div.flame", {}, column(node, root, show)));
  };
  show(root);
  return scrollable("Calls", view);
}

function column(node, root, show) {
  const label = `${node.name}: ${number(1000 * node.seconds, 3)} ms, ${percent(node.seconds / root.seconds)} of a step`;
  const call = h(`button.flame-call.${kind(node.name)}`,
    { title: label, "aria-label": label, onclick: () => show(node) }, node.name);
  const children = node.children.map((child) => column(child, root, show));
  const rest = h("span");
  rest.style.flexGrow = Math.max(0,
    node.seconds - node.children.reduce((sum, child) => sum + child.seconds, 0)) / node.seconds;
  const element = h("div.flame-column", {}, call, children.length ? h("div.flame-row", {}, children, rest) : "");
  element.style.flexGrow = node.seconds / root.seconds;
  if (children.length) for (const [index, child] of children.entries())
    child.style.flexGrow = node.children[index].seconds / node.seconds;
  return element;
}

// An operator of PyTorch, a function of the user's, or something else.
function kind(name) {
  if (name.includes("::")) return "flame-operator";
  return / in /.test(name) ? "flame-function" : "flame-other";
}
