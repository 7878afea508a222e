// Stacks of ranks and of the processes below them: equal ones together, the user's code first, all as one text.

import { ranges } from "/static/run/keys.js";
import { h } from "/static/dom.js";

const LIBRARIES = /\/(site|dist)-packages\/|\/lib\/python|<frozen /;

// Groups the threads `[{ rank, threads: [{ name, frames }] }]` by their calls, of which the innermost is the last.
export function grouped(ranks) {
  const groups = new Map();
  for (const { rank, threads } of ranks) {
    for (const { name, frames } of threads) {
      const key = frames.join("\n");
      if (!groups.has(key)) groups.set(key, { frames, names: new Map() });
      const { names } = groups.get(key);
      names.set(name, [...(names.get(name) ?? []), rank]);
    }
  }
  const isOwn = ({ frames }) => frames.some((frame) => !LIBRARIES.test(frame));
  const who = ([name, of]) => `${of.length > 1 ? "ranks" : "rank"} ${ranges(of)}, ${name}`;
  return [...groups.values()].map((group) => ({ ...group, title: [...group.names].map(who).join("; ") }))
    .sort((a, b) => isOwn(b) - isOwn(a));
}

export function stackText(groups) {
  const text = ({ title, frames }) => [`${title}:`, ...frames.map((frame) => `  ${frame}`)].join("\n");
  return groups.map(text).join("\n\n");
}

// Returns the stacks, the first one open, below a button that copies all as text.
export function stackList(ranks) {
  const groups = grouped(ranks);
  const copy = () => navigator.clipboard.writeText(stackText(groups));
  const button = navigator.clipboard ? h("button.small", { onclick: copy }, "Copy all") : "";
  return [button, ...groups.map(({ title, frames }, index) => h("details", { open: index === 0 },
    h("summary", {}, title, h("span.quiet", {}, ` ${frames.at(-1) ?? ""}`)),
    h("pre", { tabindex: 0, role: "region", "aria-label": `Stack of ${title}, the innermost call last` },
      h("code", {}, frames.map((frame) => h(LIBRARIES.test(frame) ? "span.quiet" : "b", {}, `${frame}\n`))))))];
}
