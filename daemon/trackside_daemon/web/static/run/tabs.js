// The tabs of a run's page. A tab is shown if one of its sections has something to show.

import { h } from "/static/dom.js";

// `tabs` are [name, title, roots]. `select(name)` is called when the user opens one.
export class Tabs {
  constructor(tabs, selected, select) {
    this.select = select;
    this.tabs = tabs.map(([name, title, roots]) => this.#make(name, title, roots));
    this.list = h("div.tabs", { role: "tablist", "aria-label": "Parts of the run",
      onkeydown: (event) => this.#key(event) }, this.tabs.map((item) => item.button));
    this.root = h("div", {}, this.list, this.tabs.map((item) => item.panel));
    this.observer = new MutationObserver(() => this.update());
    for (const root of tabs.flatMap(([, , roots]) => roots))
      this.observer.observe(root, { attributes: true, attributeFilter: ["hidden"] });
    this.open(this.tabs.some((item) => item.name === selected) ? selected : this.tabs[0].name);
  }

  open(name) {
    this.selected = name;
    this.update();
  }

  // Hides tabs without content, except the one that is open.
  update() {
    for (const { name, button, panel, roots } of this.tabs) {
      const isOpen = name === this.selected;
      button.hidden = !isOpen && roots.every((root) => root.hidden);
      button.setAttribute("aria-selected", String(isOpen));
      button.tabIndex = isOpen ? 0 : -1;
      if (panel.hidden === isOpen) panel.hidden = !isOpen;
    }
  }

  #make(name, title, roots) {
    const button = h("button", { role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`,
      onclick: () => this.#choose(name) }, title);
    const panel = h("div", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, hidden: true },
      roots);
    return { name, button, panel, roots };
  }

  #choose(name) {
    this.open(name);
    this.select(name);
  }

  #key(event) {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    const shown = this.tabs.filter((item) => !item.button.hidden);
    const next = shown[(shown.findIndex((item) => item.name === this.selected) + direction +
      shown.length) % shown.length];
    this.#choose(next.name);
    next.button.focus();
  }
}
