// The range of an export in steps or times; an empty field is open-ended.

import { h } from "/static/dom.js";
import { number } from "/static/format.js";

// Formats a time for a datetime-local input: in the browser's time zone, with milliseconds.
function toLocalInput(seconds) {
  const date = new Date(1000 * seconds);
  const pad = (value, digits = 2) => String(value).padStart(digits, "0");
  const day = `${pad(date.getFullYear(), 4)}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => pad(part)).join(":");
  return `${day}T${time}.${pad(date.getMilliseconds(), 3)}`;
}

export class RangeFields {
  constructor(params, /** @type {Run} */ run, onChange) {
    this.by = params.get("by") === "time" ? "time" : "step";
    this.ends = Object.fromEntries(["from", "to"].map((name) => [name, parseNumber(params.get(name))]));
    this.onChange = onChange;
    const axes = [["step", "Step"], ["time", "Time"]].map(([value, text]) =>
      h("option", { value, selected: value === this.by }, text));
    const by = h("select", { onchange: () => this.#setAxis(by.value) }, axes);
    this.inputs = { from: h("input", { onchange: () => this.#read("from") }),
      to: h("input", { onchange: () => this.#read("to") }) };
    this.hints = { from: "first", to: number(run.step) || "last" };
    const labels = [["By", by], ["From", this.inputs.from], ["To", this.inputs.to]].map(([text, input]) =>
      h("label", {}, text, input));
    this.root = h("fieldset", {}, h("legend", {}, "Range"), h("div.window", {}, ...labels));
    this.#write();
  }

  get value() {
    const { from, to } = this.ends;
    return { by: this.by, from, to };
  }

  // Sets the window to which a chart was zoomed.
  setRange(from, to) {
    this.ends = { from, to };
    this.#write();
    this.onChange();
  }

  #setAxis(by) {
    this.by = by;
    this.ends = {};
    this.#write();
    this.onChange();
  }

  // Called only on user input: the text of a time has fewer digits than the time itself.
  #read(name) {
    const { value } = this.inputs[name];
    const end = this.by === "time" && value ? new Date(value).getTime() / 1000 : parseNumber(value);
    this.ends = { ...this.ends, [name]: end };
    this.onChange();
  }

  #write() {
    for (const [name, input] of Object.entries(this.inputs)) {
      input.type = this.by === "time" ? "datetime-local" : "number";
      input.step = this.by === "time" ? "0.001" : "1";
      input.placeholder = this.by === "time" ? "" : this.hints[name];
      const end = this.ends[name];
      const text = this.by === "time" ? toLocalInput : String;
      input.value = end === undefined ? "" : text(end);
    }
  }
}

function parseNumber(text) {
  const end = text ? Number(text) : undefined;
  return Number.isFinite(end) ? end : undefined;
}
