// How a run ended, as established from outside and as its exceptions state; and what its command printed last.

import { exceptionText } from "/static/alerts/evidence.js";
import { getJson, query } from "/static/api.js";
import { h, ENDED, badge, facts, rerender, fold } from "/static/dom.js";
import { span, when } from "/static/format.js";
import { ConsoleView } from "/static/run/console.js";

const EVENTS = 300; // The newest events, among which those of the end are.
const SHOWN = 8; // Ranks with their exception.

export class Ending {
  constructor(/** @type {Run} */ run, signal) {
    this.id = run.id;
    this.signal = signal;
    this.facts = facts();
    this.exceptions = h("div");
    this.console = new ConsoleView(run, signal);
    this.link = h("button.small", { hidden: true, onclick: () => this.console.open() }, "Last lines of the console");
    this.end = h("div", {}, this.facts, h("p", {}, this.link), this.exceptions);
    this.section = fold("How it ended", { hidden: true }, [], this.end);
    this.root = h("div", { hidden: true }, this.section, this.console.root);
  }

  async update(/** @type {Run} */ run) {
    const ended = ENDED.has(run.state);
    await Promise.all([this.console.update(), ended && this.#showEnd(run)]);
    this.link.hidden = !this.console.present;
    this.section.hidden = !ended || (run.state === "finished" && !run.cause && this.link.hidden);
    this.root.hidden = this.section.hidden && this.console.root.hidden;
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
