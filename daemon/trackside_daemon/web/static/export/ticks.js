// A group of checkboxes of which none means all.

import { h, say } from "/static/dom.js";
import { plural } from "/static/words.js";

const FEW = 8; // More have a search above them.

export class Ticks {
  // `named` is "key"; `tell(item)` what stands beside a box; `changed()` is told when another is chosen.
  constructor({ title, named, items, chosen, tell = String, changed }) {
    Object.assign(this, { items, named, chosen: new Set(items.filter((one) => chosen.includes(String(one)))), changed });
    const search = h("input", { type: "search", oninput: () => this.#filter(search.value) });
    this.said = h("span.quiet", { role: "status" });
    this.none = h("button.small", { type: "button", onclick: () => this.#clear() }, "Clear");
    this.rows = items.map((item) => this.#row(item, tell(item)));
    this.root = h(
      "fieldset",
      {},
      h("legend", {}, title),
      h("div.tools", {}, items.length > FEW && h("label", {}, "Search", search), this.said, this.none),
      h("ul.ticks", {}, ...this.rows),
    );
    this.#told();
  }

  get value() {
    return this.items.filter((one) => this.chosen.has(one));
  }

  #row(item, text) {
    const box = h("input", { type: "checkbox", value: item, checked: this.chosen.has(item), onchange: () => this.#turn(item, box.checked) });
    return h("li", {}, h("label", {}, box, h("span.of", {}, text)));
  }

  #turn(item, whether) {
    if (whether) this.chosen.add(item);
    else this.chosen.delete(item);
    this.#told();
    this.changed();
  }

  #clear() {
    for (const box of this.root.querySelectorAll("ul input")) box.checked = false;
    this.chosen.clear();
    this.#told();
    this.changed();
  }

  #filter(text) {
    this.rows.forEach((row, place) => { row.hidden = !String(this.items[place]).toLowerCase().includes(text.trim().toLowerCase()); });
  }

  #told() {
    const count = this.chosen.size;
    say(this.said, count ? `${count} of ${plural(this.items.length, this.named)}` : `None chosen: all ${plural(this.items.length, this.named)}`);
    this.none.hidden = !count;
  }
}
