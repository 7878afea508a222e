// The evidence of an alert, part by part. A part of a shape that is not known here is shown as it is.

import { samples } from "/static/alerts/samples.js";
import { named, valued } from "/static/alerts/words.js";
import { h } from "/static/dom.js";
import { span } from "/static/words.js";

const PARTS = {
  samples: ["Samples before it", samples],
  stacks: ["Stacks", stacks],
  ranks: ["Last values of the ranks", ranks],
  events: ["What happened before", events],
  xids: ["Xid errors", (xids, alert) => things(xids.map(({ gpu, xid, time }) => ({ when: before(time, alert), GPU: gpu, Xid: xid })))],
  stderr: ["The last lines of its standard error", lines],
  processes: ["Processes", things],
  host: ["Host", (host) => h("div.cards", {}, h("div.card", {}, facts(host)))],
  cgroups: ["Cgroups", (cgroups) => h("div.cards", {}, Object.entries(cgroups).map(([path, values]) => h("section.card", {}, h("h3.mono", {}, path), facts(values))))],
  gpus: ["GPUs", gpus],
  missing: ["Not known", (missing) => h("ul", {}, missing.map((line) => h("li", {}, line)))],
};

export function evidence(alert) {
  const all = alert.evidence;
  const strange = Object.keys(all).filter((name) => !Object.hasOwn(PARTS, name) && all[name] !== null && typeof all[name] === "object");
  const parts = [...Object.keys(PARTS), ...strange].filter((name) => Object.hasOwn(all, name) && !empty(all[name]));
  return parts.map((name) => {
    const [title, part] = Object.hasOwn(PARTS, name) ? PARTS[name] : [named(name), raw];
    return h("section", {}, h("h2", {}, title), shown(part, all[name], alert));
  });
}

// What of the evidence is a single value.
export function single(alert) {
  return Object.entries(alert.evidence).filter(([name, value]) => !Object.hasOwn(PARTS, name) && (value === null || typeof value !== "object"));
}

function shown(part, value, alert) {
  try {
    return part(value, alert);
  } catch {
    return raw(value);
  }
}

function empty(value) {
  return value === null || (typeof value === "object" && !Object.keys(value).length);
}

function raw(value) {
  return text(JSON.stringify(value, null, 2), "As it was told");
}

// What may be wider than the page can be scrolled by the keyboard too.
function text(content, label) {
  return h("pre", { tabindex: 0, role: "region", "aria-label": label }, content);
}

function facts(values) {
  return h("dl.facts", {}, Object.entries(values).map(([name, value]) => [h("dt", {}, named(name)), h("dd", {}, valued(name, value))]));
}

function stacks(ranks) {
  return h("div.charts", {}, ranks.map(({ rank, threads }) => h("section.card", {}, h("h3", {}, `Rank ${rank}`), threads.map((thread, place) => stack(rank, thread, place)))));
}

// The main thread is open; the innermost call is the last, as Python writes them, and stands out.
function stack(rank, { name, frames }, place) {
  const label = `Rank ${rank}, ${name}, the innermost call last`;
  const calls = [frames.slice(0, -1).map((frame) => `${frame}\n`), h("b", {}, frames.at(-1))];
  return h("details", { open: place === 0 }, h("summary", {}, name, h("span.quiet", {}, place === 0 ? ", the innermost call last" : "")), text(h("code", {}, calls), label));
}

function ranks(found) {
  const order = Object.keys(found).sort((one, other) => Number(one) - Number(other));
  const flat = order.map((rank) => Object.fromEntries(Object.entries(found[rank]).flatMap(([name, value]) => {
    if (value === null || typeof value !== "object") return [[name, value]];
    return Object.entries(value).map(([inner, one]) => [name === "phase_seconds" ? `${inner}_seconds phase` : `${name} ${inner}`, one]);
  })));
  const names = [...new Set(flat.flatMap(Object.keys))];
  const head = h("tr", {}, h("th", { scope: "col" }, "Value"), order.map((rank) => h("th.number", { scope: "col" }, `Rank ${rank}`)));
  const body = names.map((name) => h("tr", {}, h("th", { scope: "row" }, titled(name)), flat.map((values) => h("td.number", {}, valued(name, values[name])))));
  return scrolled("Last values of the ranks", h("thead", {}, head), h("tbody", {}, body));
}

function titled(name) {
  if (name.endsWith("_seconds phase")) return `time in ${name.slice(0, -"_seconds phase".length)}`;
  return /^[a-z_]+$/.test(name) ? named(name) : name;
}

function events(found, alert) {
  return things(found.map(({ time, kind, rank, step, fields }) => ({
    when: before(time, alert),
    event: kind.replaceAll("_", " "),
    rank,
    step,
    details: Object.entries(fields ?? {}).filter(([, value]) => value !== "" && value !== null).map(([name, value]) => `${name} ${valued(name, value)}`).join(", "),
  })));
}

function before(time, alert) {
  const seconds = alert.started - time;
  if (Math.abs(seconds) <= 0.05) return "then";
  return `${span(Math.abs(seconds))} ${seconds > 0 ? "before" : "after"}`;
}

// Things of the same kind, one to a row. A column that has no value anywhere is left out.
function things(found) {
  const names = [...new Set(found.flatMap(Object.keys))].filter((name) => found.some((one) => valued(name, one[name]) !== ""));
  const kind = (name) => (found.some((one) => typeof one[name] === "string" && one[name]) ? "text" : "number");
  const head = h("tr", {}, names.map((name) => h(kind(name) === "text" ? "th" : "th.number", { scope: "col" }, capital(named(name)))));
  const body = found.map((one) => h("tr", {}, names.map((name) => h(`td.${kind(name)}`, {}, valued(name, one[name])))));
  return scrolled("", h("thead", {}, head), h("tbody", {}, body));
}

function scrolled(label, ...parts) {
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": label || "Table" }, h("table.things", {}, parts));
}

function capital(name) {
  return name[0].toUpperCase() + name.slice(1);
}

function gpus(found) {
  return h("div.cards", {}, Object.entries(found).map(([gpu, { readings, processes, ranks: trained = [], clocks_kept_down_by: limits = [] }]) => h(
    "section.card",
    {},
    h("h3", {}, `GPU ${gpu}`),
    trained.length ? h("p.quiet", {}, trained.join(", ")) : null,
    limits.length ? h("p.warn", {}, `Clocks kept down by ${limits.join(", ")}`) : null,
    facts(readings),
    processes?.length ? things(processes) : null,
  )));
}

function lines(found) {
  return text(found.join("\n"), "Standard error");
}
