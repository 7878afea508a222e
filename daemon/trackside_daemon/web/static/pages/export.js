// Export of the samples of runs, of each as a file.

import { oneOf } from "/static/address.js";
import { UnreachableError, getJson, runPath } from "/static/api.js";
import { download, h, setText } from "/static/dom.js";
import { FORMATS, MAX_BROWSER_BYTES, countSamples, estimate, fetchFile, fileName } from "/static/export/files.js";
import { Picker } from "/static/picker.js";
import { COUNT_MS, isDue } from "/static/polling.js";
import { bytes, runAddress, number, plural } from "/static/format.js";

export const title = "Export";

const SEARCH_ABOVE = 8; // Groups with more items have a search field.
const MAX_RUNS = 32; // As on Compare.

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
    /** @type {Run[]} */
    this.runs = [];
    this.picker = new Picker({ most: MAX_RUNS, chosen: () => this.runs.map((run) => ({ id: run.id, document: run })),
      onChange: (run, isOn) => this.#choose(run, isOn) }, signal);
    this.summary = h("summary", {}, "Choose runs");
    this.choose = h("details.picker", {}, this.summary, this.picker.root);
    this.note = h("p.quiet", { role: "status" });
    this.fields = h("form", { onsubmit: (event) => event.preventDefault() });
    this.side = h("div");
    this.root = h("div.export", {}, h("h1", {}, "Export"), this.choose, this.note, this.fields, this.side);
  }

  async load() {
    const ids = this.params.getAll("run").slice(0, MAX_RUNS);
    const answers = await Promise.allSettled(ids.map((id) => getJson(runPath(id), this.signal)));
    const missing = answers.flatMap((answer, index) => {
      if (answer.status === "fulfilled") this.runs.push(answer.value);
      else if (answer.reason.status !== 404) throw answer.reason;
      return answer.status === "fulfilled" ? [] : [`Run “${ids[index]}” does not exist.`];
    });
    await this.picker.load();
    this.choose.open = !this.runs.length;
    if (this.runs.length) this.#show();
    setText(this.note, missing.join(" ") || (this.runs.length ? "" : "Choose runs, then select what to export."));
  }

  // A live run has more samples with each update.
  update(/** @type {Overview} */ overview) {
    const now = this.runs.map(({ id }) => overview.runs.find((item) => item.id === id)?.step).join();
    if (!this.runs.length || now === this.counted || this.loading) return;
    if (!isDue(this.countedAt ?? -Infinity, COUNT_MS)) return;
    this.counted = now;
    this.#countSamples();
  }

  async #choose(run, isOn) {
    try {
      this.runs = isOn ? [...this.runs, await getJson(runPath(run.id), this.signal)]
        : this.runs.filter(({ id }) => id !== run.id);
    } catch (problem) {
      if (!this.signal.aborted) setText(this.note, problem.message);
      return;
    }
    this.loading?.abort();
    this.params = new URLSearchParams();
    setText(this.note, "");
    this.picker.update();
    if (this.runs.length) this.#show();
    else this.fields.replaceChildren(), this.side.replaceChildren();
  }

  // Builds the form for the selected runs.
  #show() {
    const { runs, params } = this;
    const metrics = runs.flatMap((run) => run.metrics);
    const onChange = () => this.#onChange();
    const unique = (name) => [...new Set(metrics.map((item) => item[name]))];
    const ranks = unique("rank").sort((a, b) => a - b);
    const attempts = runs.length === 1 ? runs[0].attempt_list.map((item) => item.attempt) : [];
    this.keys = new CheckboxGroup({ title: "Keys", noun: "key", items: unique("key"), selected: params.getAll("key"),
      onChange });
    this.ranks = new CheckboxGroup({ title: "Ranks", noun: "rank", items: ranks, selected: params.getAll("rank"),
      labelOf: (item) => `rank ${item}`, onChange });
    this.ranks.root.hidden = ranks.length < 2;
    const attemptOptions = attempts.map((item) =>
      h("option", { value: item, selected: params.get("attempt") === String(item) }, item));
    this.attempt = h("select", { onchange: onChange }, h("option", { value: "" }, "All"), attemptOptions);
    this.window = new RangeFields(params, runs, onChange);
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
    setText(this.summary, runs.length > 1 ? plural(runs.length, "run") : `Run: ${runs[0].name}`);
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
      h("p", {}, "This is too large for a browser. This command writes whole runs to files:"), this.command);
    const trimmed = this.runs.some((run) => run.trimmed) &&
      h("p.warn", {}, "Older samples were trimmed. The file contains the remaining ones.");
    const links = this.runs.flatMap((run) => [", ", h("a", { href: runAddress(run.id) }, run.name)]).slice(1);
    const run = h("p.quiet", {}, "Every sample of ", links, ", without downsampling.");
    const buttons = h("div.tools", {}, this.button, this.cancelButton);
    const aboutText = [this.total, run, this.aboutText, trimmed, this.tooLarge, buttons, this.progress, this.status];
    this.side.replaceChildren(h("section.card", {}, h("h2", {}, "File"), aboutText));
  }

  // What is selected of each run: the keys that it has, and nothing of a run that has none of them.
  get #selections() {
    const [keys, ranks] = [this.keys.value, this.ranks.value];
    const all = this.runs.map((run) => ({ run: run.id, name: run.name, ranks, attempt: this.attempt.value,
      ...this.window.value, form: this.form, resources: this.resources.checked,
      keys: keys.filter((key) => run.metrics.some((item) => item.key === key)) }));
    return all.filter((selection) => !keys.length || selection.keys.length);
  }

  #onChange() {
    const { by, from, to } = this.window.value;
    const { form, resources: { checked } } = this;
    this.set({ run: this.runs.map((run) => run.id), key: this.keys.value, rank: this.ranks.value,
      attempt: this.attempt.value, by: by === "step" ? "" : by, from, to, format: form === "csv" ? "" : form,
      resources: checked ? "true" : "" });
    setText(this.command, this.runs.map(({ id }, index) =>
      exportCommand(id, form, checked, this.runs.length > 1 ? `FILE${index + 1}` : "FILE")).join("\n"));
    this.#countSamples();
  }

  async #countSamples() {
    this.counting?.abort();
    const controller = new AbortController();
    this.counting = controller;
    this.countedAt = performance.now();
    const all = this.#selections;
    try {
      const signal = AbortSignal.any([this.signal, controller.signal]);
      const counts = await Promise.all(all.map((selection) => countSamples(selection, signal)));
      const samples = counts.reduce((sum, count) => sum + count, 0);
      const sizes = counts.map((count, index) =>
        estimate(count, all[index].keys.length ? all[index].keys : this.keys.items, this.form));
      const size = sizes.reduce((sum, each) => sum + each, 0);
      const what = all.length > 1 ? `in ${all.length} files` : `as ${all.length && fileName(all[0], all[0].name)}`;
      setText(this.total, `${number(samples)} ${samples === 1 ? "sample" : "samples"}`);
      setText(this.aboutText, samples ? `About ${bytes(size)}, ${what}.` : "The selection has no samples.");
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
    this.progress.hidden = this.cancelButton.hidden = !this.loading;
    this.button.disabled = !this.hasSamples || this.loading !== undefined;
  }

  #showTooLarge(isLarge) {
    this.tooLarge.hidden = !isLarge;
    this.button.hidden = isLarge;
  }

  async #download() {
    const all = this.#selections;
    this.loading = new AbortController();
    this.#update();
    try {
      let sum = 0;
      for (const selection of all) {
        const file = await fetchFile(selection, (size) => setText(this.status, `${bytes(sum + size)} so far…`),
          AbortSignal.any([this.signal, this.loading.signal]));
        if (!file) return this.#showTooLarge(true);
        download(file, fileName(selection, all.length > 1 ? selection.run : selection.name));
        sum += file.size;
      }
      setText(this.status, `Done: ${bytes(sum)}.`);
    } catch (problem) {
      const isLost = problem instanceof UnreachableError;
      const why = isLost ? "The connection to the daemon was lost, so there is no file." : problem.message;
      setText(this.status, this.loading.signal.aborted ? "Cancelled." : why);
    } finally {
      this.loading = undefined;
      this.#update();
    }
  }
}

function exportCommand(run, form, resources, file) {
  return `trackside export ${shellQuoted(run)} --format ${form}${resources ? " --resources" : ""} --output ${file}`;
}

// Quotes a text for a shell.
function shellQuoted(text) {
  return /^[\w./:@-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// Formats a time for a datetime-local input: in the browser's time zone, with milliseconds.
function toLocalInput(seconds) {
  const offset = 60 * new Date(1000 * seconds).getTimezoneOffset();
  return new Date(1000 * (seconds - offset)).toISOString().slice(0, -1);
}

class RangeFields {
  constructor(params, /** @type {Run[]} */ runs, onChange) {
    this.by = params.get("by") === "time" ? "time" : "step";
    this.ends = Object.fromEntries(["from", "to"].map((name) => [name, parseNumber(params.get(name))]));
    this.onChange = onChange;
    const axes = [["step", "Step"], ["time", "Time"]].map(([value, text]) =>
      h("option", { value, selected: value === this.by }, text));
    const by = h("select", { onchange: () => this.#setAxis(by.value) }, axes);
    this.inputs = { from: h("input", { onchange: () => this.#read("from") }),
      to: h("input", { onchange: () => this.#read("to") }) };
    this.hints = { from: "first", to: number(Math.max(...runs.map((run) => run.step ?? 0))) };
    const labels = [["By", by], ["From", this.inputs.from], ["To", this.inputs.to]].map(([text, input]) =>
      h("label", {}, text, input));
    this.root = h("fieldset", {}, h("legend", {}, "Range"), h("div.window", {}, ...labels));
    this.#write();
  }

  get value() {
    const { from, to } = this.ends;
    return { by: this.by, from, to };
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
    this.onChange = onChange;
    const search = h("input", { type: "search", oninput: () => this.#filter(search.value) });
    this.status = h("span.quiet", { role: "status" });
    this.clearButton = h("button.small", { onclick: () => this.#clear() }, "Clear");
    this.boxes = items.map((item) => h("input", { type: "checkbox", value: item,
      checked: selected.includes(String(item)), onchange: () => this.#changed() }));
    this.rowElements = items.map((item, index) =>
      h("li", {}, h("label", {}, this.boxes[index], h("span.of", {}, labelOf(item)))));
    this.root = h("fieldset", {},
      h("legend", {}, title),
      h("div.tools", {}, items.length > SEARCH_ABOVE && h("label", {}, "Search", search), this.status,
        this.clearButton),
      h("ul.ticks", {}, ...this.rowElements));
    this.#updateStatus();
  }

  get value() {
    return this.items.filter((_, index) => this.boxes[index].checked);
  }

  #clear() {
    for (const box of this.boxes) box.checked = false;
    this.#changed();
  }

  #changed() {
    this.#updateStatus();
    this.onChange();
  }

  #filter(text) {
    this.rowElements.forEach(
      (row, index) => { row.hidden = !String(this.items[index]).toLowerCase().includes(text.trim().toLowerCase()); });
  }

  #updateStatus() {
    const count = this.value.length;
    setText(this.status, count
      ? `${count} of ${plural(this.items.length, this.noun)}`
      : `None selected: all ${plural(this.items.length, this.noun)}`);
    this.clearButton.hidden = !count;
  }
}
