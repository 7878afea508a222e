// How a run ended, as established from outside and as its exceptions state; and what its command printed last.

import { exceptionText } from "/static/alerts/evidence.js";
import { getJson, query, runPath } from "/static/api.js";
import { h, ENDED, badge, facts, rerender, fold, setText } from "/static/dom.js";
import { span, when, bytes, plural } from "/static/format.js";

const LINES = 400; // Lines of a request.
// Others are shown as plain text.
const STYLES = new Set(["red", "green", "yellow", "blue", "magenta", "cyan", "bold"]);

class ConsoleView {
  constructor(/** @type {Run} */ run, signal) {
    this.id = run.id;
    this.signal = signal;
    this.present = false;
    this.first = 0;
    this.count = h("span.quiet");
    this.search = h("input", { type: "search", "aria-label": "Search the console", placeholder: "Search the console",
      onchange: () => this.#load() });
    this.earlier = h("button.small", { onclick: () => this.#load(this.first) }, "Earlier lines");
    this.status = h("p.quiet", { role: "status" });
    this.lines = h("ol.console-lines");
    this.frame = h("div.console", { tabindex: 0, role: "region", "aria-label": "Console" }, this.lines);
    this.root = fold("Console", { hidden: true, ontoggle: () => this.refresh() }, [this.count],
      h("div.tools", {}, this.search, this.earlier), this.status, this.frame);
  }

  async update() {
    try {
      const { bytes: size, total } = await getJson(`${runPath(this.id)}/console?lines=0`, this.signal);
      this.present = total > 0;
      setText(this.count, `${plural(total, "line")}, ${bytes(size)}`);
      this.size = size;
    } catch {
      // The frame reports the outage; a run without a console has none.
    }
    this.root.hidden = !this.present;
  }

  // Loads the last lines if they are new and somebody sees them.
  refresh() {
    if (this.size === this.loaded || this.search.value || !this.frame.checkVisibility()) return;
    this.loaded = this.size;
    this.#load();
  }

  // Loads the last lines, or those before one.
  async #load(before) {
    const search = this.search.value.trim();
    try {
      const { lines, more } = await getJson(
        `${runPath(this.id)}/console?${query({ lines: LINES, colors: true, search, before })}`, this.signal);
      const rows = lines.map(([number, text, parts]) =>
        h("li", { value: number }, search ? marked(text, search) : colored(text, parts)));
      if (before) this.lines.prepend(...rows);
      else this.lines.replaceChildren(...rows);
      if (!before) this.frame.scrollTop = this.frame.scrollHeight;
      this.first = lines[0]?.[0] ?? 0;
      this.earlier.hidden = !more;
      setText(this.status, search && !lines.length ? `No line contains ${search}.` : "");
    } catch (problem) {
      setText(this.status, problem.message);
    }
  }
}

// Returns a line whose parts [begin, end, styles] have the classes of their styles.
function colored(text, parts) {
  const letters = parts.length ? [...text] : []; // The places count code points.
  const children = [];
  let from = 0;
  for (const [begin, end, styles] of parts) {
    const classes = styles.split(" ").filter((style) => STYLES.has(style)).map((style) => `.sgr-${style}`);
    children.push(letters.slice(from, begin).join(""),
      h(`span${classes.join("")}`, {}, letters.slice(begin, end).join("")));
    from = end;
  }
  return children.length ? [...children, letters.slice(from).join("")] : text || " ";
}

// Returns a line with each occurrence of the search marked.
function marked(text, search) {
  const parts = [];
  const [lower, wanted] = [text.toLowerCase(), search.toLowerCase()];
  if (lower.length !== text.length) return text; // Of some letters the lower case is longer.
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), h("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}

const EVENTS = 300; // The newest events, among which those of the end are.
const SHOWN = 8; // Ranks with their exception.

export class Ending {
  constructor(/** @type {Run} */ run, signal) {
    this.id = run.id;
    this.signal = signal;
    this.facts = facts();
    this.exceptions = h("div");
    this.console = new ConsoleView(run, signal);
    this.end = h("div", {}, this.facts, this.exceptions);
    this.section = fold("How it ended", { hidden: true }, [], this.end);
    this.root = h("div", { hidden: true }, this.section, this.console.root);
  }

  async update(/** @type {Run} */ run) {
    const ended = ENDED.has(run.state);
    await Promise.all([this.console.update(), ended && this.#showEnd(run)]);
    this.section.hidden = !ended || (run.state === "finished" && !run.cause && !this.console.present);
    this.root.hidden = this.section.hidden && this.console.root.hidden;
    this.console.refresh();
  }

  async #showEnd(run) {
    const { events } = await getJson(`events?${query({ run: this.id, limit: EVENTS })}`, this.signal)
      .catch(() => ({ events: [] }));
    const last = events.filter((event) => event.attempt === run.attempt);
    const ends = last.filter(({ kind }) => kind === "rank_ended");
    const exits = [...new Set(ends.map(({ fields }) => exit(fields)).filter(Boolean))];
    this.facts.update([
      ["State", badge(run.state)],
      ["Cause", run.cause],
      ["Exit", exits.join(", ")],
      ["When", run.ended === null ? "" : `${when(run.ended)}, after ${span(run.ended - run.started)}`],
    ]);
    const raised = last.filter(({ kind, fields }) => kind === "exception" && fields.traceback !== undefined);
    const one = ({ rank, fields }, index) => h("details", { open: index === 0 },
      h("summary", {}, `Exception of rank ${rank}, the innermost call last`), exceptionText(fields));
    rerender(this.exceptions, JSON.stringify(raised), () => raised.slice(0, SHOWN).map(one));
  }
}

function exit({ status, signal }) {
  if (signal !== undefined) return `signal ${signal}`;
  return status === undefined ? "" : `status ${status}`;
}
