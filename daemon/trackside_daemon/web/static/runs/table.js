// A table of many runs: only the rows that are visible exist, so that thousands scroll smoothly.

import { h, badge } from "/static/dom.js";
import { dot } from "/static/picker.js";
import { lossCurve } from "/static/runs/curves.js";
import { commonDecimals, isNumeric, summarized, text } from "/static/runs/columns.js";
import { real, runAddress } from "/static/format.js";

const ROW_HEIGHT = 36;
const EXTRA_ROWS = 12; // Beyond the visible ones.
const LEAST_WIDTH = 60;
const CHOICE_WIDTH = 34;
const SPREAD_WIDTH = 140; // Least width of a column of means and spreads.

const controlsOf = (row) => [...row.querySelectorAll("a, button, input")];

export class RunTable {
  // `options`: `leads(run)` returns what stands in narrow cells before a run, without a run what stands in the head;
  // `mark(column, run, cell)` completes a cell; `onSort(id)`, `onTag(tag)`, `onWidth(id, width)`, `onVisible(runs)`;
  // `curve(run)` returns a run's losses once they are loaded.
  constructor(options) {
    this.options = { mark: () => {}, onVisible: () => {}, ...options };
    this.items = [];
    this.rows = new Map();
    this.open = new Set();
    this.head = h("tr");
    this.columnGroup = h("colgroup");
    this.before = h("tr.spacer", { "aria-hidden": "true" }, h("td"));
    this.after = h("tr.spacer", { "aria-hidden": "true" }, h("td"));
    this.body = h("tbody", {}, this.before, this.after);
    this.table = h("table.all-runs", {}, h("caption.unseen", {}, "Runs"), this.columnGroup, h("thead", {}, this.head),
      this.body);
    this.root = h("div.run-scroll", { tabindex: 0, role: "region", "aria-label": "Runs", onscroll: () => this.#soon() },
      this.table);
    new ResizeObserver(() => this.#soon()).observe(this.root);
  }

  // Shows groups [label, runs], or one without a label, in some columns. `sort` is { id, descending }.
  show(groups, columns, widths, sort) {
    this.columns = columns;
    const all = groups.flatMap(([, runs]) => runs);
    this.numeric = new Map(this.columns.map((column) => [column.id, isNumeric(column, all)]));
    this.decimals = new Map(this.columns.map((column) => [column.id, commonDecimals(column, all)]));
    this.groups = groups;
    this.#heads(widths, sort);
    this.#list();
  }

  #list() {
    this.items = this.groups.flatMap(([label, runs]) => {
      if (label === undefined) return runs.map((run) => ({ key: run.id, run }));
      return [{ key: `group ${label}`, label, runs },
        ...(this.open.has(label) ? runs.map((run) => ({ key: run.id, run })) : [])];
    });
    const focused = [...this.rows].find(([, row]) => row.contains(document.activeElement));
    const place = focused ? controlsOf(focused[1]).indexOf(document.activeElement) : -1;
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.table.setAttribute("aria-rowcount", String(this.items.length + 1));
    this.#draw();
    if (focused && this.rows.has(focused[0]))
      controlsOf(this.rows.get(focused[0]))[place]?.focus({ preventScroll: true });
  }

  #heads(widths, sort) {
    const hasSpreads = this.groups[0]?.[0] !== undefined;
    const shown = JSON.stringify([this.columns.map(({ id, width }) => [id, width]), widths, sort, [...this.numeric],
      hasSpreads]);
    if (shown === this.shownHeads) return;
    this.shownHeads = shown;
    const width = (column) =>
      widths[column.id] ?? Math.max(column.width, hasSpreads && this.numeric.get(column.id) ? SPREAD_WIDTH : 0);
    const cols = this.columns.map(() => h("col"));
    cols.forEach((col, index) => { col.style.width = `${width(this.columns[index])}px`; });
    const leads = this.options.leads();
    const first = leads.map(() => h("col"));
    for (const col of first) col.style.width = `${CHOICE_WIDTH}px`;
    this.columnGroup.replaceChildren(...first, ...cols);
    const wide = this.columns.reduce((sum, column) => sum + width(column), leads.length * CHOICE_WIDTH);
    this.table.style.width = `${wide}px`;
    const heads = this.columns.map((column, index) => this.#headCell(column, cols[index], sort));
    this.head.replaceChildren(...leads.map((lead) => h("th.box", { scope: "col" }, lead)), ...heads);
  }

  #headCell(column, col, sort) {
    const isSorted = sort.id === column.id;
    const [arrow, order] = sort.descending ? [" ↓", "descending"] : [" ↑", "ascending"];
    const button = h("button.sort", { title: `Sort by ${column.title}`,
      onclick: () => this.options.onSort(column.id) }, column.title + (isSorted ? arrow : ""));
    const grip = h("span.grip", { onpointerdown: (event) => this.#resize(event, column, col),
      ondblclick: () => this.options.onWidth(column.id, undefined) });
    const tag = this.numeric.get(column.id) && column.id !== "curve" ? "th.number" : "th";
    return h(tag, { scope: "col", "aria-sort": isSorted && order }, button, grip);
  }

  #resize(event, column, col) {
    event.preventDefault();
    const [start, before] = [event.clientX, Number.parseFloat(col.style.width)];
    const whole = Number.parseFloat(this.table.style.width);
    const dragging = new AbortController();
    const width = (moved) => Math.max(LEAST_WIDTH, before + moved.clientX - start);
    addEventListener("pointermove", (moved) => {
      col.style.width = `${width(moved)}px`;
      this.table.style.width = `${whole - before + width(moved)}px`;
    }, { signal: dragging.signal });
    addEventListener("pointerup", (moved) => {
      dragging.abort();
      this.options.onWidth(column.id, Math.round(width(moved)));
    }, { signal: dragging.signal });
  }

  #soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.#draw();
    });
  }

  #draw() {
    const first = Math.max(0, Math.floor(this.root.scrollTop / ROW_HEIGHT) - EXTRA_ROWS);
    const count = Math.ceil((this.root.clientHeight || 800) / ROW_HEIGHT) + 2 * EXTRA_ROWS;
    const visible = this.items.slice(first, first + count);
    const keys = new Set(visible.map((item) => item.key));
    for (const [key, row] of this.rows) {
      if (keys.has(key) || row.contains(document.activeElement)) continue;
      row.remove();
      this.rows.delete(key);
    }
    visible.forEach((item, index) => {
      const row = this.rows.get(item.key) ?? (item.run ? this.#runRow(item.run) : this.#groupRow(item));
      this.rows.set(item.key, row);
      row.setAttribute("aria-rowindex", String(first + index + 2));
      if (this.body.children[index + 1] !== row)
        this.body.insertBefore(row, this.body.children[index + 1] ?? this.after);
    });
    this.body.append(this.after);
    this.before.firstChild.style.height = `${first * ROW_HEIGHT}px`;
    this.after.firstChild.style.height = `${Math.max(0, this.items.length - first - visible.length) * ROW_HEIGHT}px`;
    this.options.onVisible(visible.flatMap((item) => (item.run ? [item.run] : [])));
  }

  // Shows the loss curves that have been loaded since.
  updateCurves() {
    for (const { key, run } of this.items) if (run && this.rows.has(key)) this.rows.get(key).updateCurve?.();
  }

  #groupRow({ label, runs }) {
    const isOpen = this.open.has(label);
    const toggle = () => {
      if (!this.open.delete(label)) this.open.add(label);
      this.#list();
    };
    const button = h("button.sort", { "aria-expanded": String(isOpen), onclick: toggle },
      `${isOpen ? "▾" : "▸"} ${label}`, h("span.quiet", {}, ` ${runs.length}`));
    const cells = this.columns.slice(1).map((column) => {
      const numeric = this.numeric.get(column.id);
      return h(numeric ? "td.number" : "td", {}, column.id === "curve" ? "" : summarized(column, runs, numeric));
    });
    return h("tr.group", {}, this.options.leads().map(() => h("td")), h("th.name", { scope: "row" }, button), cells);
  }

  #runRow(run) {
    const cells = this.columns.map((column) => this.#cell(column, run));
    cells.forEach((cell, index) => this.options.mark(this.columns[index], run, cell));
    const row = h("tr", {}, this.options.leads(run).map((lead) => h("td.box", {}, lead)), cells);
    row.updateCurve = () => cells.find((cell) => cell.updateCurve)?.updateCurve();
    row.updateCurve();
    return row;
  }

  #cell(column, run) {
    if (column.id === "name") return h("th.name",
      { scope: "row" }, run.index === undefined ? "" : dot(run.index),
      h("a", { href: run.url ?? runAddress(run.id), title: `${run.name} (${run.id})` }, run.label),
      run.pinned ? h("span.quiet", { title: "The history limits do not delete this run" }, " · pinned") : "");
    if (column.id === "state") return h("td", { title: run.cause }, badge(run.state));
    if (column.id === "tags") return h("td", {}, run.tags.map((tag) => h("button.tag",
      { "aria-label": `Show only tag ${tag}`, onclick: () => this.options.onTag(tag) }, tag)));
    if (column.id === "curve") return this.#curveCell(run);
    const shown = text(column, column.value(run), this.decimals.get(column.id));
    const isBad = real(column.value(run)) !== undefined && typeof column.value(run) === "string";
    return h(`td${this.numeric.get(column.id) ? ".number" : ""}${isBad ? ".nonfinite" : ""}`, { title: shown }, shown);
  }

  #curveCell(run) {
    const cell = h("td.curve");
    cell.updateCurve = () => {
      const values = this.options.curve(run);
      if (!values || values === cell.shown) return;
      cell.shown = values;
      cell.replaceChildren(lossCurve(values));
    };
    return cell;
  }
}
