// What a run's charts show, and how; kept in the address.

import { h, setText } from "/static/dom.js";
import { plural } from "/static/format.js";

const RANKS = { lowest: "Lowest rank", all: "All ranks as lines", band: "All ranks as a band" };

// Returns the selection: { by, smooth, log, ranks, attempt, filter, from, to, root, zoom(from, to), update(run) }. `onChange`
// receives the settings that changed.
export function controls(address, run, onChange) {
  const read = (name) => address.query.get(name) ?? undefined;
  const numeric = (name) => (Number.isFinite(Number.parseFloat(read(name))) ? Number.parseFloat(read(name)) : undefined);
  const selection = {
    by: read("by") === "time" ? "time" : "step",
    smooth: Math.min(0.99, Math.max(0, numeric("smooth") ?? 0)),
    log: read("log") === "1",
    ranks: read("ranks") in RANKS ? read("ranks") : "lowest",
    attempt: Number.isInteger(numeric("attempt")) ? numeric("attempt") : undefined,
    filter: read("filter") ?? "",
    from: numeric("from"),
    to: numeric("to"),
  };
  const set = (changes) => {
    Object.assign(selection, changes);
    onChange(changes);
    address.set(toQuery(selection));
  };
  selection.zoom = (from, to) => set({ from, to });
  const attempt = attemptSelect(selection, set);
  const rankOptions = Object.entries(RANKS).map(([value, text]) => h("option", { value, selected: value === selection.ranks }, text));
  const ranks = h("select", { onchange: () => set({ ranks: ranks.value }) }, ...rankOptions);
  const ranksLabel = h("label", {}, "Ranks", ranks);
  const all = [axisButtons(selection, set), smoothingSlider(selection, set), logCheckbox(selection, set), ranksLabel, attempt.root, filterField(selection, set)];
  selection.root = h("div.tools.run-tools", { role: "group", "aria-label": "Chart settings" }, all);
  selection.update = (now) => {
    ranksLabel.hidden = now.metrics.every((item) => item.rank === now.metrics[0].rank);
    attempt.update(now.attempt_list.map((item) => item.attempt));
  };
  return selection;
}

function toQuery({ by, smooth, log, ranks, attempt, filter: text, from, to }) {
  return { by: by === "time" ? by : "", smooth: smooth || "", log: log ? "1" : "", ranks: ranks === "lowest" ? "" : ranks, attempt, filter: text, from, to };
}

function axisButtons(selection, set) {
  const names = { step: "Step", time: "Time" };
  const buttons = Object.entries(names).map(([by, text]) => {
    const press = () => {
      if (by === selection.by) return;
      set({ by, from: undefined, to: undefined });
      buttons.forEach((item) => item.setAttribute("aria-pressed", String(item === button)));
    };
    const button = h("button", { type: "button", "aria-pressed": String(by === selection.by), onclick: press }, text);
    return button;
  });
  return h("span.joined", { role: "group", "aria-label": "Axis" }, buttons);
}

function smoothingSlider(selection, set) {
  const value = h("span.run-value", {}, selection.smooth.toFixed(2));
  const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: selection.smooth });
  let frame;
  slider.addEventListener("input", () => {
    setText(value, slider.valueAsNumber.toFixed(2));
    frame ??= requestAnimationFrame(() => {
      frame = undefined;
      set({ smooth: slider.valueAsNumber });
    });
  });
  return h("label", {}, "Smoothing", slider, value);
}

function logCheckbox(selection, set) {
  const box = h("input", { type: "checkbox", checked: selection.log, onchange: () => set({ log: box.checked }) });
  return h("label", {}, box, "Log scale");
}

function attemptSelect(selection, set) {
  const list = h("select", { onchange: () => set({ attempt: list.value === "" ? undefined : Number(list.value) }) });
  const root = h("label", {}, "Attempt", list);
  const update = (numbers) => {
    root.hidden = numbers.length < 2;
    if (list.options.length === numbers.length + 1) return;
    const options = numbers.map((item) => h("option", { value: item }, String(item)));
    list.replaceChildren(h("option", { value: "" }, `All ${plural(numbers.length, "attempt")}`), ...options);
    list.value = selection.attempt ?? "";
  };
  return { root, update };
}

function filterField(selection, set) {
  const text = h("input", { type: "search", placeholder: "loss, eval/…", value: selection.filter, oninput: () => set({ filter: text.value }) });
  return h("label.run-filter", {}, "Keys", text);
}
