// How a run is: its name and state, where it stands and how fast it goes, and what fires.

import { query } from "/static/api.js";
import { h, rows, say } from "/static/dom.js";
import { badge, bar, ENDED } from "/static/parts.js";
import { isLoss } from "/static/run/words.js";
import { Stacks } from "/static/run/stacks.js";
import { number, percent, plural, short, span, when } from "/static/words.js";

export class Head {
  constructor(run) {
    this.run = run;
    this.state = badge(run.state);
    this.about = h("span.quiet");
    this.cause = h("p.run-cause", { hidden: true });
    this.tiles = new Map(["Step", "Loss", "Time left", "Throughput", "Step time", "Took"].map((name) => [name, tile(name)]));
    this.progress = bar();
    this.tiles.get("Step").element.append(this.progress);
    this.firing = h("ul.run-firing", { "aria-label": "Alerts that fire" });
    this.stacks = new Stacks(run);
    this.exporting = h("a.button", {}, "Export");
    const actions = [h("a.button", { href: `/compare?${query({ run: run.id })}` }, "Compare"), this.exporting, this.stacks.button];
    this.root = h(
      "section.run-head",
      { "aria-label": "State" },
      h("div.run-title", {}, h("h1", {}, run.name), this.state, h("div.run-actions", {}, actions)),
      h("p.run-about", {}, h("span.mono", {}, run.id), this.about, run.tags.map((tag) => h("span.tag", {}, tag))),
      this.cause,
      h("dl.run-tiles", {}, [...this.tiles.values()].map((one) => one.element)),
      this.firing,
      this.stacks.root,
    );
  }

  // What the charts show, which is what an export begins with.
  shown({ by, from, to, attempt }, keys) {
    this.exporting.setAttribute("href", `/export?${query({ run: this.run.id, key: keys, by, from, to, attempt })}`);
  }

  // What the API tells of the run.
  told(run) {
    this.run = run;
    this.#show();
  }

  // What is newer: the overview's `row`, its `alerts` and `now`, or the stream's `newest`.
  heard(news) {
    if ("alerts" in news) this.row = news.row;
    Object.assign(this, news);
    this.#show();
  }

  #show() {
    const { run, row, newest } = this;
    const state = newest?.state ?? run.state;
    const ended = ENDED.has(state);
    this.state.told(state);
    say(this.about, about(run));
    this.cause.hidden = !run.cause;
    say(this.cause, run.cause);
    this.cause.className = `run-cause ${run.state}`;
    const step = newest?.step ?? row?.step ?? lastStep(run);
    const total = row?.total_steps ?? run.attempt_list.at(-1)?.total_steps;
    const ratio = row?.progress_ratio ?? (total ? Math.min(1, step / total) : undefined);
    this.#tile("Step", Number.isFinite(step) ? number(step) : "", total ? `of ${number(total)}, ${percent(ratio, 1)}` : "");
    this.progress.told(total && Number.isFinite(step) ? ratio : undefined);
    const [key, value] = loss(run, newest);
    this.#tile("Loss", number(value), key === "loss" ? "" : key);
    this.tiles.get("Loss").value.classList.toggle("bad", typeof value === "string");
    this.#tile("Time left", !ended && row?.remaining_seconds > 0 ? span(row.remaining_seconds) : "", "");
    const speeds = ended ? [] : [short(row?.tokens_per_second, " tokens/s"), short(row?.samples_per_second, " samples/s")].filter(Boolean);
    this.#tile("Throughput", speeds[0] ?? "", speeds[1] ?? "");
    this.#tile("Step time", ended ? "" : span(row?.step_seconds), "");
    const until = run.ended ?? this.now;
    const times = run.ended === null ? `since ${when(run.started)}` : `${when(run.started)} to ${when(run.ended)}`;
    this.#tile("Took", Number.isFinite(until) ? span(until - run.started) : "…", times);
    this.stacks.told(!ended && row !== undefined);
    rows(this.firing, this.alerts ?? [], (one) => `${one.alert} ${one.started} ${one.rank} ${one.key} ${one.id}`, alert);
  }

  #tile(name, text, under) {
    const { element, value, under: below } = this.tiles.get(name);
    element.hidden = !text;
    say(value, text);
    say(below, under);
  }
}

function tile(name) {
  const value = h("span.run-figure");
  const under = h("span.quiet");
  return { element: h("div.run-tile", {}, h("dt", {}, name), h("dd", {}, value, under)), value, under };
}

function about(run) {
  const { attempt, attempt_list: list } = run;
  const last = list.at(-1) ?? {};
  const told = [
    attempt && `attempt ${attempt}`,
    last.world_size > 1 && plural(last.world_size, "rank"),
    ...[last.host, last.framework],
    last.job_id && `job ${last.job_id}`,
    run.pinned && "pinned",
  ];
  return told.filter(Boolean).join(" · ");
}

// Of the last attempt, which begins behind the one before where it resumes from a checkpoint.
function lastStep({ attempt_list: list, metrics }) {
  const last = list.at(-1)?.attempt;
  return metrics.reduce((highest, one) => (one.attempt === last && !(one.last_step <= highest) ? one.last_step : highest), undefined);
}

// The newest loss, of the lowest rank: that of training before others.
function loss(run, newest) {
  const keys = newest ? Object.keys(newest.values) : [];
  const key = ["loss", "train/loss", "train_loss"].find((one) => keys.includes(one)) ?? keys.find(isLoss);
  if (key === undefined) return ["loss", run.loss];
  const ranks = newest.values[key];
  return [key, ranks[Math.min(...Object.keys(ranks).map(Number))][2]];
}

function alert(first) {
  const word = badge(first.severity);
  const link = h("a", { href: first.id === null ? "/alerts" : `/alerts/${first.id}` }, first.alert);
  const said = h("span");
  const row = h("li", {}, word, link, said);
  row.told = (one) => {
    word.told(one.severity, one.silenced ? `${one.severity}, silenced` : one.severity);
    if (one.id !== null) link.setAttribute("href", `/alerts/${one.id}`);
    say(said, one.summary);
  };
  return row;
}
