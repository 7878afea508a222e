// A group of checkboxes; selecting none means all.

import { h, setText } from "/static/dom.js";
import { plural } from "/static/format.js";

const SEARCH_ABOVE = 8; // Groups with more items have a search field.

export class CheckboxGroup {
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
