// A run's header: its name, state, progress, speed, firing alerts, the stacks of its ranks, and the dialog that gives
// it away: a link with its charts as they are arranged, a report as a file, and Markdown.

import { fetchApi, query, getJson, runPath } from "/static/api.js";
import { openDialog } from "/static/confirm.js";
import { downloadReport } from "/static/export/files.js";
import { h, rerender, syncRows, setText, badge, bar, ENDED, withCode } from "/static/dom.js";
import { isLoss, ranges } from "/static/run/keys.js";
import { LOSSES } from "/static/vocabulary.js";
import { stackList } from "/static/stacks.js";
import { number, ofPlanned, plural, short, span, when, plain } from "/static/format.js";

class Stacks {
  constructor(/** @type {Run} */ run) {
    this.id = run.id;
    this.button = h("button", { hidden: true, onclick: () => this.#load() }, "Show stacks");
    this.status = h("p.quiet", { role: "status" });
    this.list = h("div");
    const close = h("button.small", { onclick: () => this.#close() }, "Close");
    const bar = h("div.run-bar", {}, h("h2", {}, "Stacks"), close);
    this.root = h("section.card.run-stacks", { hidden: true, "aria-label": "Stacks" }, bar, this.status, this.list);
  }

  // Where a run stands that makes no steps is what its page is opened for.
  update(live, isStalled) {
    this.button.hidden = !live;
    if (live && isStalled && !this.wasStalled) this.#load();
    this.wasStalled = live && isStalled;
  }

  #close() {
    this.root.hidden = true;
    this.button.focus();
  }

  async #load() {
    this.root.hidden = false;
    this.button.disabled = true;
    setText(this.status, "Loading…");
    try {
      const { ranks, silent } = await getJson(`${runPath(this.id)}/stacks`);
      const silentText = silent.length
        ? ` No answer within 3 s from ${plural(silent.length, "rank")}: ${ranges(silent)}.` : "";
      setText(this.status, `${plural(ranks.length, "rank")} answered at ${when(Date.now() / 1000)}.${silentText}`);
      this.list.replaceChildren(...stackList(ranks.map(threadsOf)));
    } catch (problem) {
      setText(this.status, problem.message);
      this.list.replaceChildren();
    }
    this.button.disabled = false;
  }
}

// Returns the threads without the client's own, the main thread first, since it runs the training.
function threadsOf({ rank, threads }) {
  const main = (entry) => (entry[0].startsWith("MainThread") ? 0 : 1);
  const own = Object.entries(threads).filter(([name]) => !name.startsWith("trackside"))
    .sort((a, b) => main(a) - main(b));
  return { rank, threads: own.map(([name, frames]) => ({ name: name.replace(/ \d+$/, ""), frames })) };
}

const MAX_FIRING = 3; // Alerts that the head shows, the most severe first.

export class Header {
  // `onEdit()` and `onShare()` open dialogs, `onNotes(text, from)` stores the notes.
  constructor(/** @type {Run} */ run, { onEdit = () => {}, onShare = () => {}, onNotes = async (..._) => {} } = {}) {
    this.run = run;
    /** @type {LiveRun} */
    this.row = undefined;
    /** @type {NewestValues} */
    this.newest = undefined;
    /** @type {number} */
    this.now = undefined;
    /** @type {Overview["alerts"]} */
    this.alerts = [];
    this.name = h("h1", {}, run.name);
    this.state = badge(run.state);
    this.about = h("span.quiet");
    this.tags = h("span.tags");
    this.notes = notes(`draft:${run.id}`, () => this.run.notes ?? "", onNotes);
    this.cause = h("p.run-cause");
    this.tiles = new Map(["Step", "Loss", "Time left", "Throughput", "Step time", "Duration"].map((name) =>
      [name, tile(name)]));
    this.progress = bar();
    this.tiles.get("Step").element.append(this.progress);
    this.results = h("dl.run-tiles", { "aria-label": "Results" });
    this.firing = h("ul.run-firing", { "aria-label": "Firing alerts" });
    this.moreAlerts = h("a.run-more", { href: `/alerts?${query({ run: run.id })}`, hidden: true });
    this.stacks = new Stacks(run);
    this.exportLink = h("a.button", {}, "Export");
    const actions = [h("a.button", { href: `/compare?${query({ run: run.id })}` }, "Compare"), this.exportLink,
      h("button", { onclick: onShare }, "Share"), h("button.needs-write", { onclick: onEdit }, "Edit"),
      this.stacks.button];
    this.root = h("section.run-head", { "aria-label": "State" },
      h("div.run-title", {}, this.name, this.state, this.about, this.tags, this.notes,
        h("div.run-actions", {}, actions)),
      h("div.run-figures", {}, h("dl.run-tiles", {}, [...this.tiles.values()].map((item) => item.element)),
        this.results),
      this.cause, this.firing, this.moreAlerts, this.stacks.root);
  }

  // Sets the link to an export of what the charts show.
  updateExportLink({ by, from, to, attempt }, keys) {
    this.exportLink.setAttribute("href", `/export?${query({ run: this.run.id, key: keys, by, from, to, attempt })}`);
  }

  // Called with the run's document.
  update(/** @type {Run} */ run) {
    this.run = run;
    this.#show();
  }

  // Called with newer values: the overview's `row`, `alerts` and `now`, or the stream's `newest`.
  updateLive(values) {
    if ("alerts" in values) this.row = values.row;
    for (const name of ["alerts", "now", "newest"]) if (name in values) this[name] = values[name];
    this.#show();
  }

  #show() {
    const { run, row, newest, alerts } = this;
    const state = newest?.state ?? run.state;
    const ended = ENDED.has(state);
    this.state.update(state);
    setText(this.name, run.name);
    setText(this.about, about(run));
    this.about.title = this.about.textContent;
    rerender(this.tags, run.tags.join("\n"), () => run.tags.map((tag) => h("span.tag", {}, tag)));
    if (this.notes !== document.activeElement && !this.notes.title) setText(this.notes, run.notes ?? "");
    const stops = (row && !ended ? row.verdict : run.verdict) || run.cause;
    const output = stops && run.state === "failed" ? [" ", h("a", { href: "?tab=output" }, "Output")] : [];
    rerender(this.cause, stops, () => [...withCode(stops ?? ""), ...output]);
    const results = run.tags.includes("benchmark") ? [] : Object.entries(run.summary ?? {}); // They have a table.
    this.results.hidden = !results.length;
    syncRows(this.results, results, ([key]) => key, ([key]) => result(key));
    this.cause.className = `run-cause ${run.state}`;
    const step = newest?.step ?? row?.step ?? lastStep(run);
    const total = row?.total_steps ?? run.attempt_list.at(-1)?.total_steps;
    const ratio = row?.progress_ratio ?? (total ? Math.min(1, step / total) : undefined);
    this.#tile("Step", Number.isFinite(step) ? number(step) : "", total ? ofPlanned(step, total, ratio) : "");
    this.progress.update(total && Number.isFinite(step) ? ratio : undefined);
    const [key, value] = loss(run, newest);
    this.#tile("Loss", number(value), key === "loss" ? "" : key);
    this.tiles.get("Loss").value.classList.toggle("bad", typeof value === "string");
    this.#tile("Time left", !ended && row?.remaining_seconds > 0 ? span(row.remaining_seconds) : "", "");
    const speeds = ended ? [] : ["tokens", "samples"].map((what) => [short(row?.[`${what}_per_second`]), what])
      .filter(([speed]) => speed).map(([speed, what]) => `${speed} ${what}/s`);
    this.#tile("Throughput", speeds[0] ?? "", speeds[1] ?? "");
    this.#tile("Step time", ended ? "" : span(row?.step_seconds), "");
    const until = run.ended ?? this.now;
    const times = run.ended === null ? `since ${when(run.started)}` : `${when(run.started)} to ${when(run.ended)}`;
    this.#tile("Duration", Number.isFinite(until) ? span(until - run.started) : "…", times);
    this.stacks.update(!ended && row !== undefined, state === "stalled");
    const others = alerts.length - MAX_FIRING;
    this.moreAlerts.hidden = others <= 0;
    setText(this.moreAlerts, `${plural(others, "more alert")}`);
    // What stops the run stands above.
    const firing = alerts.slice(0, MAX_FIRING).map((item) =>
      (item.summary && stops?.startsWith(item.summary) ? { ...item, summary: "" } : item));
    this.firing.classList.toggle("beside", firing.length === 1 && !firing[0].summary);
    syncRows(this.firing, firing,
      (item) => `${item.alert} ${item.started} ${item.rank} ${item.key} ${item.id}`, alert);
  }

  #tile(name, text, note) {
    const { element, value, note: noteElement } = this.tiles.get(name);
    element.hidden = !text;
    setText(value, text);
    setText(noteElement, note);
  }
}

// The notes of a run, written where they stand; Escape puts back those `stored()`. A title says that they are not. The
// session has them by `name` until they are, with those that they began from.
function notes(name, stored, onNotes) {
  const isReader = document.documentElement.dataset.role === "read";
  const kept = () => JSON.parse((!isReader && sessionStorage.getItem(name)) || "{}");
  if (kept().text?.trim() === stored()) sessionStorage.removeItem(name); // Stored as the page was left.
  let draft = kept();
  let saving = Promise.resolve(); // One after the other: each replaces what the one before stored.
  const writing = isReader ? { role: "note" }
    : { contenteditable: "plaintext-only", role: "textbox", "aria-multiline": "true", "data-empty": "Add a note" };
  const element = h("div.run-notes", { ...writing, "aria-label": "Notes",
    oninput: () => {
      draft = { text: element.innerText, from: draft.from ?? stored() };
      sessionStorage.setItem(name, JSON.stringify(draft));
    },
    onblur: () => (saving = saving.then(async () => {
      const text = element.innerText.trim();
      element.title = text === stored() ? "" : "Saving…";
      const problem = element.title && (await onNotes(text, draft.from).then(() => "", (refused) => refused));
      const how = problem.status === 409 ? ". Escape drops yours; saved again, they replace those." : "";
      element.title = problem && `Not saved: ${problem.message}${how}`;
      element.classList.toggle("bad", element.title !== "");
      const later = !problem && element.innerText.trim() !== text ? { text: element.innerText, from: text } : {};
      if (!problem || problem.status === 409) draft = later; // Whoever saves again has been shown what others wrote.
      if (!problem) sessionStorage.setItem(name, JSON.stringify(draft));
    })),
    onkeydown: (event) => {
      if (event.key === "Escape") setText(element, stored());
      if (event.key === "Escape" || (event.key === "Enter" && event.ctrlKey)) element.blur();
    } });
  if (draft.text === undefined) return element;
  setText(element, draft.text);
  element.title = "Not saved: the page was left. Click to go on.";
  element.classList.add("bad");
  return element;
}

function tile(name) {
  const value = h("span.run-figure");
  const note = h("span.quiet");
  return { element: h("div.run-tile", {}, h("dt", {}, name), h("dd", {}, value, note)), value, note };
}

function result(key) {
  const { element, value } = tile(key);
  element.update = ([, stated]) => setText(value, typeof stated === "number" ? number(stated) : plain(stated));
  return element;
}

function about(run) {
  const { attempt, attempt_list: list } = run;
  const last = list.at(-1) ?? {};
  const parts = [run.id, run.user && `of ${run.user}`, attempt && `attempt ${attempt}`,
    last.world_size > 1 && plural(last.world_size, "rank"), last.host, last.framework,
    last.job_id && `job ${last.job_id}`, last.correlation && `correlation ${last.correlation}`,
    last.auto && `auto: ${last.auto.join(", ")}`, run.pinned && "pinned"];
  return parts.filter(Boolean).join(" · ");
}

// Returns the last attempt's highest step. After a resume from a checkpoint it may be lower than an earlier attempt's.
function lastStep({ attempt_list: list, metrics }) {
  const last = list.at(-1)?.attempt;
  return metrics.reduce((highest, item) =>
    (item.attempt === last && !(item.last_step <= highest) ? item.last_step : highest), undefined);
}

// Returns [key, value] of the newest loss of the lowest rank; the training loss comes first.
function loss(run, newest) {
  const keys = newest ? Object.keys(newest.values) : [];
  const key = LOSSES.find((item) => keys.includes(item)) ?? keys.find(isLoss);
  if (key === undefined) return ["loss", run.loss];
  const ranks = newest.values[key];
  return [key, ranks[Math.min(...Object.keys(ranks).map(Number))][2]];
}

function alert(first) {
  const word = badge(first.severity);
  const link = h("a", { href: first.id === null ? "/alerts" : `/alerts/${first.id}` }, first.alert);
  const summary = h("span.clamp");
  const row = h("li", {}, word, link, summary);
  row.update = (item) => {
    word.update(item.severity, item.silenced ? `${item.severity}, silenced` : item.severity);
    if (item.id !== null) link.setAttribute("href", `/alerts/${item.id}`);
    rerender(summary, item.summary, () => withCode(item.summary));
    summary.title = item.summary;
  };
  return row;
}

const SHOWN_MS = 2500; // The time that a button shows its result.
const LOOPBACK = /^(localhost|127\.|\[::1\])/;

// Returns a button that copies what `text()` resolves to; without the permission, it stands in a field to be copied.
function copyButton(name, text, field) {
  const button = h("button", { onclick: async () => {
    const shown = await text();
    field.value = shown;
    await navigator.clipboard.writeText(shown).then(() => setText(button, "Copied"), () => field.select());
    setTimeout(() => setText(button, name), SHOWN_MS);
  } }, name);
  return button;
}

// Returns how another machine reaches this address: with an SSH tunnel, if it is one of this machine alone.
export function tunnel({ hostname, port }, host) {
  return LOOPBACK.test(hostname) ? `ssh -L ${port}:127.0.0.1:${port} ${host || "HOST"}` : "";
}

// `encode()` returns the arrangement of the charts as the address has it.
export function openShareDialog(/** @type {Run} */ run, encode, host, signal) {
  const address = new URL(location.href);
  address.searchParams.set("view", encode());
  const markdown = async () =>
    (await fetchApi(`${runPath(run.id)}/report/file?${query({ format: "markdown" })}`, { signal })).text();
  const save = async () => {
    await downloadReport(run, { format: "html" }, signal);
    close();
  };
  const field = h("textarea", { rows: 3, readonly: true }, address.href);
  const command = tunnel(location, host);
  const buttons = [copyButton("Copy link", () => address.href, field),
    copyButton("Copy Markdown", markdown, field)];
  const { close } = openDialog("Share", { action: "HTML report", submit: save, content: [
    h("p", {}, "The link shows the charts as you see them. It needs the token of this daemon: ",
      h("code", {}, "trackside token"), "."),
    command ? h("p", {}, "The daemon is reached from its own machine only. From another one, first: ",
      h("code", {}, command)) : "",
    h("p", {}, "The report is one file with curves, configuration and diagnosis, which needs no network."),
    h("label.field", {}, "To copy", field), h("div.tools", {}, buttons)] }, signal);
}
