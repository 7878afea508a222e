// Samples of a run as a file, every one of them, and a chart of them as a picture.

import { Unreachable, ask } from "/static/api.js";
import { h, say } from "/static/dom.js";
import { Drawing } from "/static/export/drawing.js";
import { FORMS, LARGEST, count, estimate, fetchFile, fileName } from "/static/export/file.js";
import { Ticks } from "/static/export/ticks.js";
import { Window } from "/static/export/window.js";
import { Picker } from "/static/picker.js";
import { bytes, runAddress } from "/static/words.js";

export const title = "Export";

const PACE = 15_000; // Milliseconds from one count of samples to the next, while a run goes on.
const whole = new Intl.NumberFormat("en");

export async function show(place) {
  const page = new Export(place);
  await page.begin();
  return { root: page.root, told: (overview) => page.told(overview) };
}

class Export {
  constructor({ query: asked, set, signal }) {
    Object.assign(this, { asked, set, signal });
    this.form = asked.get("format") in FORMS ? asked.get("format") : "csv";
    this.drawing = new Drawing((from, to) => this.window.zoomed(from, to), signal);
    const chosen = () => (this.run ? [this.run.id] : []);
    this.picker = new Picker({ most: 1, chosen, changed: (run) => this.#turn(run) }, signal);
    this.summary = h("summary", {}, "Choose a run");
    this.choose = h("details.picker", {}, this.summary, this.picker.root);
    this.note = h("p.quiet", { role: "status" });
    this.fields = h("form", { onsubmit: (event) => event.preventDefault() });
    this.side = h("div");
    this.root = h("div.export", {}, h("h1", {}, "Export"), this.choose, this.note, this.fields, this.side);
  }

  async begin() {
    const id = this.asked.get("run");
    if (id) {
      try {
        this.run = await ask(`runs/${encodeURIComponent(id)}`, { signal: this.signal });
      } catch (problem) {
        if (problem.status !== 404) throw problem;
        say(this.note, `There is no run “${id}”.`);
      }
    }
    await this.picker.begin();
    this.choose.open = !this.run;
    if (this.run) this.#show();
    else if (!id) say(this.note, "Choose a run, and what of it the file is to have.");
    this.note.hidden = !this.note.textContent;
  }

  // A run that goes on has more samples each time.
  told(overview) {
    if (!this.run) return;
    const now = overview.runs.find((one) => one.id === this.run.id)?.step;
    if (now !== this.step) this.drawing.refresh();
    this.step = now;
    if (now === this.counted || document.hidden || this.loading || performance.now() < this.asking + PACE) return;
    this.counted = now;
    this.#count();
  }

  async #turn(run) {
    try {
      this.run = await ask(`runs/${encodeURIComponent(run.id)}`, { signal: this.signal });
    } catch (problem) {
      if (!this.signal.aborted) say(this.note, problem.message);
      this.note.hidden = false;
      return;
    }
    this.loading?.abort();
    this.asked = new URLSearchParams();
    this.note.hidden = true;
    this.choose.open = false;
    this.picker.told();
    this.#show();
  }

  // The form of a run.
  #show() {
    const { run, asked } = this;
    const own = run.metrics;
    const changed = () => this.#changed();
    const unique = (name) => [...new Set(own.map((one) => one[name]))];
    const ranks = unique("rank").sort((one, other) => one - other);
    const attempts = run.attempt_list.map((one) => one.attempt);
    this.keys = new Ticks({ title: "Keys", named: "key", items: unique("key"), chosen: asked.getAll("key"), changed });
    this.ranks = new Ticks({ title: "Ranks", named: "rank", items: ranks, chosen: asked.getAll("rank"), tell: (one) => `rank ${one}`, changed });
    this.ranks.root.hidden = ranks.length < 2;
    const tries = attempts.map((one) => h("option", { value: one, selected: asked.get("attempt") === String(one) }, one));
    this.attempt = h("select", { onchange: changed }, h("option", { value: "" }, "All"), tries);
    this.window = new Window(asked, run, changed);
    const forms = Object.entries(FORMS).map(([value, [name, text]]) => {
      const chosen = () => {
        this.form = value;
        changed();
      };
      const box = h("input", { type: "radio", name: "format", value, checked: value === this.form, onchange: chosen });
      return h("li", {}, h("label", {}, box, h("span.of", {}, name), h("span.quiet", {}, text)));
    });
    say(this.summary, `Run: ${run.name}`);
    this.fields.replaceChildren(
      this.keys.root,
      this.ranks.root,
      ...(attempts.length > 1 ? [h("fieldset", {}, h("legend", {}, "Attempt"), h("div.tools", {}, h("label", {}, "Attempt", this.attempt)))] : []),
      this.window.root,
      h("fieldset.forms", {}, h("legend", {}, "Format"), h("ul.ticks", {}, ...forms)),
    );
    this.#side();
    this.#changed();
  }

  #side() {
    this.total = h("p.total", { role: "status" }, "…");
    this.about = h("p.quiet");
    this.said = h("p", { role: "status" });
    this.progress = h("progress", { "aria-label": "Progress", hidden: true });
    this.button = h("button.strong", { type: "button", onclick: () => this.#download() }, "Download");
    this.stop = h("button", { type: "button", hidden: true, onclick: () => this.loading.abort() }, "Cancel");
    this.command = h("pre", {}, `trackside export ${quoted(this.run.id)} --format ${this.form} --output FILE`);
    this.large = h("div", { hidden: true }, h("p", {}, "This is more than a browser should hold. The command writes the whole run to a file:"), this.command);
    const trimmed = this.run.trimmed && h("p.warn", {}, "Older samples of this run were trimmed. The file has those that are left.");
    const run = h("p.quiet", {}, "Every sample of ", h("a", { href: runAddress(this.run.id) }, this.run.name), ", not thinned out.");
    const buttons = h("div.tools", {}, this.button, this.stop);
    const about = [this.total, run, this.about, trimmed, this.large, buttons, this.progress, this.said];
    this.side.replaceChildren(h("section.card", {}, h("h2", {}, "File"), about), this.drawing.root);
  }

  get #choice() {
    return { run: this.run.id, keys: this.keys.value, ranks: this.ranks.value, attempt: this.attempt.value, ...this.window.value, form: this.form };
  }

  #changed() {
    const { run, keys, ranks, attempt, by, from, to, form } = this.#choice;
    this.set({ run, key: keys, rank: ranks, attempt, by: by === "step" ? "" : by, from, to, format: form === "csv" ? "" : form });
    say(this.command, `trackside export ${quoted(run)} --format ${form} --output FILE`);
    this.#count();
    this.drawing.told(this.#choice, this.run, this.keys.items, this.ranks.items.length > 1 && !ranks.length);
  }

  async #count() {
    this.counting?.abort();
    const mine = new AbortController();
    this.counting = mine;
    this.asking = performance.now();
    try {
      const choice = this.#choice;
      const samples = await count(choice, AbortSignal.any([this.signal, mine.signal]));
      const size = estimate(samples, choice.keys.length ? choice.keys : this.keys.items, choice.form);
      say(this.total, `${whole.format(samples)} ${samples === 1 ? "sample" : "samples"}`);
      say(this.about, samples ? `About ${bytes(size)}, as ${fileName(choice, this.run.name)}.` : "Nothing of this choice is there.");
      this.#over(size > LARGEST);
      this.some = samples > 0;
    } catch (problem) {
      if (!mine.signal.aborted && !this.signal.aborted) {
        say(this.total, "");
        say(this.about, problem.status === 404 ? "Nothing of this choice is there." : problem.message);
        this.some = false;
      }
    }
    this.#told();
  }

  #told() {
    this.button.disabled = !this.some || this.loading !== undefined;
  }

  #over(whether) {
    this.large.hidden = !whether;
    this.button.hidden = whether;
  }

  async #download() {
    const [choice, { name }] = [this.#choice, this.run];
    this.loading = new AbortController();
    this.#busy(true);
    try {
      const file = await fetchFile(choice, (size) => say(this.said, `${bytes(size)} so far…`), AbortSignal.any([this.signal, this.loading.signal]));
      if (file) hand(file, fileName(choice, name));
      else this.#over(true);
      say(this.said, file ? `Done: ${bytes(file.size)}.` : "");
    } catch (problem) {
      say(this.said, this.loading.signal.aborted ? "Cancelled." : problem instanceof Unreachable ? "The daemon broke off, so there is no file." : problem.message);
    } finally {
      this.#busy(false);
    }
  }

  #busy(whether) {
    if (!whether) this.loading = undefined;
    this.progress.hidden = !whether;
    this.stop.hidden = !whether;
    this.#told();
  }
}

// As a shell needs it.
function quoted(text) {
  return /^[\w./:@-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function hand(file, name) {
  const link = h("a", { href: URL.createObjectURL(file), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
