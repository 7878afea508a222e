// The checkpoints of a run: each with its state, the value of a metric, and why one is damaged.

import { getJson, runPath } from "/static/api.js";
import { h, liveRow, setText, syncRows, badge, fold } from "/static/dom.js";
import { bytes, number, plural, when } from "/static/format.js";
import { scrollTable } from "/static/run/tables.js";

const HEADS = [["Step", "number"], ["Written"], ["State"], ["Format"], ["Size", "number"], ["Metric", "number"],
  ["Path"]];
const MAX_ROWS = 100;
const SEVERITIES = { damaged: "critical", writing: "info", unread: "info", gone: "stopped", complete: "finished" };

export class Checkpoints {
  constructor(/** @type {Run} */ run, signal) {
    this.id = run.id;
    this.signal = signal;
    this.count = h("span.quiet");
    this.body = h("tbody");
    this.root = fold("Checkpoints", { hidden: true }, [this.count], scrollTable("Checkpoints", HEADS, this.body));
    this.metric = this.root.querySelector("th:nth-child(6)");
  }

  async update() {
    try {
      const { checkpoints, metric } = await getJson(`${runPath(this.id)}/checkpoints`, this.signal);
      this.root.hidden = !checkpoints.length;
      setText(this.metric, metric || "Metric");
      setText(this.count, summary(checkpoints));
      syncRows(this.body, checkpoints.reverse().slice(0, MAX_ROWS), (item) => item.path, row);
    } catch {
      // The frame reports the outage; the next update tries again.
    }
  }
}

function summary(checkpoints) {
  const damaged = checkpoints.filter((item) => item.state === "damaged").length;
  const good = checkpoints.findLast((item) => item.good);
  const last = good ? `the last intact one is of step ${good.step ?? "unknown"}` : "none is known to be intact";
  const kept = checkpoints.filter((item) => item.state !== "gone").length;
  return `${plural(kept, "checkpoint")} on disk, ${damaged ? `${damaged} damaged, ` : ""}${last}`;
}

function row() {
  const [state, reason] = [badge(), h("div.quiet")];
  const about = h("div", {}, state, reason);
  return liveRow(["td.number", "td", "td.text", "td", "td.number", "td.number", "td.text.mono"], (item) => {
    const unread = item.state === "complete" && !item.good;
    state.update(unread ? "info" : SEVERITIES[item.state], unread ? "complete, not read" : item.state);
    setText(reason, String(item.reason));
    return [item.step, when(item.time), about, item.format, item.bytes ? bytes(item.bytes) : "", number(item.value),
      item.path];
  });
}
