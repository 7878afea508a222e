// From where to where: steps, or moments; an end that is left empty is open.

import { h } from "/static/dom.js";
import { number } from "/static/words.js";

// What an input takes for a moment: the browser's own time zone, milliseconds.
function local(seconds) {
  const date = new Date(1000 * seconds);
  const two = (one, digits = 2) => String(one).padStart(digits, "0");
  const day = `${two(date.getFullYear(), 4)}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day}T${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${two(date.getMilliseconds(), 3)}`;
}

export class Window {
  constructor(asked, run, changed) {
    this.by = asked.get("by") === "time" ? "time" : "step";
    this.ends = Object.fromEntries(["from", "to"].map((name) => [name, given(asked.get(name))]));
    this.changed = changed;
    const axes = [["step", "Step"], ["time", "Time"]].map(([value, text]) => h("option", { value, selected: value === this.by }, text));
    const by = h("select", { onchange: () => this.#turn(by.value) }, axes);
    this.inputs = { from: h("input", { onchange: () => this.#read("from") }), to: h("input", { onchange: () => this.#read("to") }) };
    this.hints = { from: "the first", to: number(run.step) || "the last" };
    const labels = [["By", by], ["From", this.inputs.from], ["To", this.inputs.to]].map(([text, input]) => h("label", {}, text, input));
    this.root = h("fieldset", {}, h("legend", {}, "Window"), h("div.window", {}, ...labels));
    this.#write();
  }

  get value() {
    return { by: this.by, ...this.ends };
  }

  // Takes the window that a chart was zoomed to.
  zoomed(from, to) {
    this.ends = { from, to };
    this.#write();
    this.changed();
  }

  #turn(by) {
    this.by = by;
    this.ends = {};
    this.#write();
    this.changed();
  }

  // Only when a person has changed it: the text of a moment has less digits than the moment.
  #read(name) {
    const { value } = this.inputs[name];
    const found = this.by === "time" && value ? new Date(value).getTime() / 1000 : given(value);
    this.ends = { ...this.ends, [name]: found };
    this.changed();
  }

  #write() {
    for (const [name, input] of Object.entries(this.inputs)) {
      input.type = this.by === "time" ? "datetime-local" : "number";
      input.step = this.by === "time" ? "0.001" : "1";
      input.placeholder = this.by === "time" ? "" : this.hints[name];
      const end = this.ends[name];
      input.value = end === undefined ? "" : this.by === "time" ? local(end) : end;
    }
  }
}

function given(text) {
  const found = text ? Number(text) : undefined;
  return Number.isFinite(found) ? found : undefined;
}
