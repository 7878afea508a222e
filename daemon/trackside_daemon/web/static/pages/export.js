// Export of a run's samples as a file, and as an image of their chart.

import { oneOf } from "/static/address.js";
import { UnreachableError, getJson, runPath } from "/static/api.js";
import { download, h, setText } from "/static/dom.js";
import { Preview, FORMATS, MAX_BROWSER_BYTES, countSamples,
  estimate, fetchFile, fileName } from "/static/export/preview.js";
import { Picker } from "/static/picker.js";
import { COUNT_MS, isDue } from "/static/polling.js";
import { bytes, runAddress, number, plural } from "/static/format.js";

export const title = "Export";

const wholeNumber = new Intl.NumberFormat("en");

const SEARCH_ABOVE = 8; // Groups with more items have a search field.

export async function show(/** @type {Address} */ address) {
  const page = new Export(address);
  await page.load();
  return { root: page.root, update: (overview) => page.update(overview) };
}

class Export {
  constructor({ query: params, set, signal }) {
    this.params = params;
    this.set = set;
    this.signal = signal;
    this.form = oneOf(FORMATS, params.get("format"), "csv");
    this.preview = new Preview((from, to) => this.window.setRange(from, to), signal);
    const chosen = () => (this.run ? [{ id: this.run.id, document: this.run }] : []);
    this.picker = new Picker({ most: 1, chosen, onChange: (run) => this.#selectRun(run) }, signal);
    this.summary = h("summary", {}, "Choose a run");
    this.choose = h("details.picker", {}, this.summary, this.picker.root);
    this.note = h("p.quiet", { role: "status" });
    this.fields = h("form", { onsubmit: (event) => event.preventDefault() });
    this.side = h("div");
    this.root = h("div.export", {}, h("h1", {}, "Export"), this.choose, this.note, this.fields, this.side);
  }

  async load() {
    const id = this.params.get("run");
    if (id) {
      try {
        this.run = await getJson(runPath(id), this.signal);
      } catch (problem) {
        if (problem.status !== 404) throw problem;
        setText(this.note, `Run “${id}” does not exist.`);
      }
    }
    await this.picker.load();
    this.choose.open = !this.run;
    if (this.run) this.#show();
    else if (!id) setText(this.note, "Choose a run, then select what to export.");
  }

  // A live run has more samples with each update.
  update(/** @type {Overview} */ overview) {
    if (!this.run) return;
    const now = overview.runs.find((item) => item.id === this.run.id)?.step;
    if (now !== this.step) this.preview.refresh();
    this.step = now;
    if (now === this.counted || this.loading || !isDue(this.countedAt ?? -Infinity, COUNT_MS)) return;
    this.counted = now;
    this.#countSamples();
  }

  async #selectRun(run) {
    try {
      this.run = await getJson(runPath(run.id), this.signal);
    } catch (problem) {
      if (!this.signal.aborted) setText(this.note, problem.message);
      return;
    }
    this.loading?.abort();
    this.params = new URLSearchParams();
    setText(this.note, "");
    this.choose.open = false;
    this.picker.update();
    this.#show();
  }

  // Builds the form for the selected run.
  #show() {
    const { run, params } = this;
    const metrics = run.metrics;
    const onChange = () => this.#onChange();
    const unique = (name) => [...new Set(metrics.map((item) => item[name]))];
    const ranks = unique("rank").sort((a, b) => a - b);
    const attempts = run.attempt_list.map((item) => item.attempt);
    this.keys = new CheckboxGroup({ title: "Keys", noun: "key", items: unique("key"), selected: params.getAll("key"),
      onChange });
    this.ranks = new CheckboxGroup({ title: "Ranks", noun: "rank", items: ranks, selected: params.getAll("rank"),
      labelOf: (item) => `rank ${item}`, onChange });
    this.ranks.root.hidden = ranks.length < 2;
    const attemptOptions = attempts.map((item) =>
      h("option", { value: item, selected: params.get("attempt") === String(item) }, item));
    this.attempt = h("select", { onchange: onChange }, h("option", { value: "" }, "All"), attemptOptions);
    this.window = new RangeFields(params, run, onChange);
    const forms = Object.entries(FORMATS).map(([value, [name, text]]) => {
      const selected = () => {
        this.form = value;
        onChange();
      };
      const box = h("input", { type: "radio", name: "format", value, checked: value === this.form,
        onchange: selected });
      return h("li", {}, h("label", {}, box, h("span.of", {}, name), h("span.quiet", {}, text)));
    });
    this.resources = h("input", { type: "checkbox", checked: params.get("resources") === "true", onchange: onChange });
    const also = h("label", {}, this.resources,
      h("span.quiet", {}, "Also the GPU, host and process series in the time of the run."));
    setText(this.summary, `Run: ${run.name}`);
    const attemptField = h("fieldset", {}, h("legend", {}, "Attempt"),
      h("div.tools", {}, h("label", {}, "Attempt", this.attempt)));
    this.fields.replaceChildren(
      this.keys.root,
      this.ranks.root,
      ...(attempts.length > 1 ? [attemptField] : []),
      this.window.root,
      h("fieldset.forms", {}, h("legend", {}, "Format"), h("ul.ticks", {}, ...forms)),
      h("fieldset.forms", {}, h("legend", {}, "Machine"), h("ul.ticks", {}, h("li", {}, also))),
    );
    this.#side();
    this.#onChange();
  }

  #side() {
    this.total = h("p.total", { role: "status" }, "…");
    this.aboutText = h("p.quiet");
    this.status = h("p", { role: "status" });
    this.progress = h("progress", { "aria-label": "Progress", hidden: true });
    this.button = h("button.strong", { onclick: () => this.#download() }, "Download");
    this.cancelButton = h("button", { hidden: true, onclick: () => this.loading.abort() }, "Cancel");
    this.command = h("pre", {});
    this.tooLarge = h("div", { hidden: true },
      h("p", {}, "This file is too large for a browser. This command writes the whole run to a file:"), this.command);
    const trimmed = this.run.trimmed &&
      h("p.warn", {}, "Older samples of this run were trimmed. The file contains the remaining ones.");
    const run = h("p.quiet", {}, "Every sample of ", h("a", { href: runAddress(this.run.id) }, this.run.name),
      ", without downsampling.");
    const buttons = h("div.tools", {}, this.button, this.cancelButton);
    const aboutText = [this.total, run, this.aboutText, trimmed, this.tooLarge, buttons, this.progress, this.status];
    this.side.replaceChildren(h("section.card", {}, h("h2", {}, "File"), aboutText), this.preview.root);
  }

  get #selection() {
    return { run: this.run.id, keys: this.keys.value, ranks: this.ranks.value, attempt: this.attempt.value,
      ...this.window.value, form: this.form, resources: this.resources.checked };
  }

  #onChange() {
    const { run, keys, ranks, attempt, by, from, to, form, resources } = this.#selection;
    this.set({ run, key: keys, rank: ranks, attempt, by: by === "step" ? "" : by, from, to,
      format: form === "csv" ? "" : form, resources: resources ? "true" : "" });
    setText(this.command, exportCommand(run, form, resources));
    this.#countSamples();
    this.preview.update(this.#selection, this.run, this.keys.items, this.ranks.items.length > 1 && !ranks.length);
  }

  async #countSamples() {
    this.counting?.abort();
    const controller = new AbortController();
    this.counting = controller;
    this.countedAt = performance.now();
    try {
      const selection = this.#selection;
      const samples = await countSamples(selection, AbortSignal.any([this.signal, controller.signal]));
      const size = estimate(samples, selection.keys.length ? selection.keys : this.keys.items, selection.form);
      setText(this.total, `${wholeNumber.format(samples)} ${samples === 1 ? "sample" : "samples"}`);
      setText(this.aboutText,
        samples ? `About ${bytes(size)}, as ${fileName(selection, this.run.name)}.` : "The selection has no samples.");
      this.#showTooLarge(size > MAX_BROWSER_BYTES);
      this.hasSamples = samples > 0;
    } catch (problem) {
      if (!controller.signal.aborted && !this.signal.aborted) {
        setText(this.total, "");
        setText(this.aboutText, problem.status === 404 ? "The selection has no samples." : problem.message);
        this.hasSamples = false;
      }
    }
    this.#update();
  }

  #update() {
    this.button.disabled = !this.hasSamples || this.loading !== undefined;
  }

  #showTooLarge(isLarge) {
    this.tooLarge.hidden = !isLarge;
    this.button.hidden = isLarge;
  }

  async #download() {
    const [selection, { name }] = [this.#selection, this.run];
    this.loading = new AbortController();
    this.#setBusy(true);
    try {
      const file = await fetchFile(selection, (size) => setText(this.status, `${bytes(size)} so far…`),
        AbortSignal.any([this.signal, this.loading.signal]));
      if (file) download(file, fileName(selection, name));
      else this.#showTooLarge(true);
      setText(this.status, file ? `Done: ${bytes(file.size)}.` : "");
    } catch (problem) {
      const isLost = problem instanceof UnreachableError;
      const why = isLost ? "The connection to the daemon was lost, so there is no file." : problem.message;
      setText(this.status, this.loading.signal.aborted ? "Cancelled." : why);
    } finally {
      this.#setBusy(false);
    }
  }

  #setBusy(isLarge) {
    if (!isLarge) this.loading = undefined;
    this.progress.hidden = !isLarge;
    this.cancelButton.hidden = !isLarge;
    this.#update();
  }
}

function exportCommand(run, form, resources) {
  return `trackside export ${shellQuoted(run)} --format ${form}${resources ? " --resources" : ""} --output FILE`;
}

// Quotes a text for a shell.
function shellQuoted(text) {
  return /^[\w./:@-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// Formats a time for a datetime-local input: in the browser's time zone, with milliseconds.
function toLocalInput(seconds) {
  const date = new Date(1000 * seconds);
  const pad = (value, digits = 2) => String(value).padStart(digits, "0");
  const day = `${pad(date.getFullYear(), 4)}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => pad(part)).join(":");
  return `${day}T${time}.${pad(date.getMilliseconds(), 3)}`;
}

class RangeFields {
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

class CheckboxGroup {
  // `noun` names an item, such as "key"; `labelOf(item)` is its label; `onChange()` is called after changes.
  constructor({ title, noun, items, selected, labelOf = (item) => String(item), onChange }) {
    this.items = items;
    this.noun = noun;
    this.selected = new Set(items.filter((item) => selected.includes(String(item))));
    this.onChange = onChange;
    const search = h("input", { type: "search", oninput: () => this.#filter(search.value) });
    this.status = h("span.quiet", { role: "status" });
    this.clearButton = h("button.small", { onclick: () => this.#clear() }, "Clear");
    this.rowElements = items.map((item) => this.#row(item, labelOf(item)));
    this.root = h("fieldset", {},
      h("legend", {}, title),
      h("div.tools", {}, items.length > SEARCH_ABOVE && h("label", {}, "Search", search), this.status,
        this.clearButton),
      h("ul.ticks", {}, ...this.rowElements));
    this.#updateStatus();
  }

  get value() {
    return this.items.filter((item) => this.selected.has(item));
  }

  #row(item, text) {
    const box = h("input", { type: "checkbox", value: item, checked: this.selected.has(item),
      onchange: () => this.#toggle(item, box.checked) });
    return h("li", {}, h("label", {}, box, h("span.of", {}, text)));
  }

  #toggle(item, isChecked) {
    if (isChecked) this.selected.add(item);
    else this.selected.delete(item);
    this.#updateStatus();
    this.onChange();
  }

  #clear() {
    for (const box of this.root.querySelectorAll("ul input")) box.checked = false;
    this.selected.clear();
    this.#updateStatus();
    this.onChange();
  }

  #filter(text) {
    this.rowElements.forEach(
      (row, index) => { row.hidden = !String(this.items[index]).toLowerCase().includes(text.trim().toLowerCase()); });
  }

  #updateStatus() {
    const count = this.selected.size;
    setText(this.status, count
      ? `${count} of ${plural(this.items.length, this.noun)}`
      : `None selected: all ${plural(this.items.length, this.noun)}`);
    this.clearButton.hidden = !count;
  }
}
