// What of a run is shown, and how: kept in the address.

import { h, say } from "/static/dom.js";
import { plural } from "/static/words.js";

const RANKS = { lowest: "Lowest rank", all: "All ranks as lines", band: "All ranks as a band" };

// The chosen: { by, smooth, log, ranks, attempt, filter, from, to, root, zoom(from, to), told(run) }; `changed` is told what is
// other now.
export function tools(place, run, changed) {
  const read = (name) => place.query.get(name) ?? undefined;
  const numeric = (name) => (Number.isFinite(Number.parseFloat(read(name))) ? Number.parseFloat(read(name)) : undefined);
  const chosen = {
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
    Object.assign(chosen, changes);
    changed(changes);
    place.set(inAddress(chosen));
  };
  chosen.zoom = (from, to) => set({ from, to });
  const attempt = attempts(chosen, set);
  const ways = Object.entries(RANKS).map(([value, text]) => h("option", { value, selected: value === chosen.ranks }, text));
  const ranks = h("select", { onchange: () => set({ ranks: ranks.value }) }, ...ways);
  const ranked = h("label", {}, "Ranks", ranks);
  const all = [axis(chosen, set), smoothing(chosen, set), logarithmic(chosen, set), ranked, attempt.root, filter(chosen, set)];
  chosen.root = h("div.tools.run-tools", { role: "group", "aria-label": "What the charts show" }, all);
  chosen.told = (now) => {
    ranked.hidden = now.metrics.every((one) => one.rank === now.metrics[0].rank);
    attempt.told(now.attempt_list.map((one) => one.attempt));
  };
  return chosen;
}

function inAddress({ by, smooth, log, ranks, attempt, filter: text, from, to }) {
  return { by: by === "time" ? by : "", smooth: smooth || "", log: log ? "1" : "", ranks: ranks === "lowest" ? "" : ranks, attempt, filter: text, from, to };
}

function axis(chosen, set) {
  const names = { step: "Step", time: "Time" };
  const buttons = Object.entries(names).map(([by, text]) => {
    const press = () => {
      if (by === chosen.by) return;
      set({ by, from: undefined, to: undefined });
      buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    };
    const button = h("button", { type: "button", "aria-pressed": String(by === chosen.by), onclick: press }, text);
    return button;
  });
  return h("span.joined", { role: "group", "aria-label": "Over" }, buttons);
}

function smoothing(chosen, set) {
  const value = h("span.run-value", {}, chosen.smooth.toFixed(2));
  const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: chosen.smooth });
  let asked;
  slider.addEventListener("input", () => {
    say(value, slider.valueAsNumber.toFixed(2));
    asked ??= requestAnimationFrame(() => {
      asked = undefined;
      set({ smooth: slider.valueAsNumber });
    });
  });
  return h("label", {}, "Smoothing", slider, value);
}

function logarithmic(chosen, set) {
  const box = h("input", { type: "checkbox", checked: chosen.log, onchange: () => set({ log: box.checked }) });
  return h("label", {}, box, "Log scale");
}

function attempts(chosen, set) {
  const list = h("select", { onchange: () => set({ attempt: list.value === "" ? undefined : Number(list.value) }) });
  const root = h("label", {}, "Attempt", list);
  const told = (numbers) => {
    root.hidden = numbers.length < 2;
    if (list.options.length === numbers.length + 1) return;
    const options = numbers.map((one) => h("option", { value: one }, String(one)));
    list.replaceChildren(h("option", { value: "" }, `All ${plural(numbers.length, "attempt")}`), ...options);
    list.value = chosen.attempt ?? "";
  };
  return { root, told };
}

function filter(chosen, set) {
  const text = h("input", { type: "search", placeholder: "loss, eval/…", value: chosen.filter, oninput: () => set({ filter: text.value }) });
  return h("label.run-filter", {}, "Keys", text);
}
