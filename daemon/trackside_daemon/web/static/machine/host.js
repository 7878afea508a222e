// The machine that the daemon is on: in one line, or all that is known of it.

import { h, rows, say } from "/static/dom.js";
import { bar, facts } from "/static/parts.js";
import { bytes, percent } from "/static/words.js";

const used = (disk) => (disk.size_bytes > 0 ? (disk.size_bytes - disk.avail_bytes) / disk.size_bytes : undefined);
const memory = (host) => host.memory_bytes - host.memory_available_bytes;

function about(host) {
  const fullest = host.disks.filter((one) => used(one) >= 0).sort((one, other) => used(other) - used(one))[0];
  return [
    ["CPU", processors(host), host.cpu_ratio],
    ["Memory", of(memory(host), host.memory_bytes), memory(host) / host.memory_bytes],
    ["Fullest disk", fullest && `${fullest.mountpoint} ${percent(used(fullest))}`, fullest && used(fullest)],
    ["Network", network(host)],
  ];
}

const processors = (host) => [percent(host.cpu_ratio), host.cpus && `of ${host.cpus}`].filter(Boolean).join(" ");

function network(host) {
  const [down, up] = [host.receive_bytes_per_second, host.transmit_bytes_per_second].map(bytes);
  return [down && `in ${down}/s`, up && `out ${up}/s`].filter(Boolean).join(", ");
}

function of(some, all) {
  return Number.isFinite(some) && Number.isFinite(all) ? `${bytes(some)} of ${bytes(all)}` : "";
}

// In one line.
export function hostLine() {
  const root = facts();
  root.classList.add("strip");
  return { root, told: ({ host }) => root.told(about(host)) };
}

// With its disks.
export function hostWhole() {
  const name = h("h3");
  const known = facts();
  const body = h("tbody");
  const heads = [["Disk", "th"], ["Used", "th"], ["Free", "th.number"], ["Size", "th.number.wide"]];
  const head = h("thead", {}, h("tr", {}, heads.map(([text, what]) => h(what, { scope: "col" }, text))));
  const disks = h("div.card.scroll", { tabindex: "0", role: "group", "aria-label": "Disks" }, h("table", {}, head, body));
  return {
    root: h("div.pair", {}, h("div.card", {}, name, known), disks),
    told({ host }) {
      say(name, host.name ?? "This machine");
      const swap = host.swap_used_bytes === undefined ? "" : `${bytes(host.swap_used_bytes)} used`;
      known.told([...about(host).filter(([what]) => what !== "Fullest disk"), ["Swap", swap]]);
      disks.hidden = !host.disks.length;
      rows(body, host.disks, (one) => one.mountpoint, disk);
    },
  };
}

function disk(first) {
  const [ratio, length, free, size] = [h("span"), bar(), h("td.number"), h("td.number.wide")];
  const row = h("tr", {}, h("th.name", { scope: "row" }, first.mountpoint), h("td.usage", {}, ratio, length), free, size);
  row.told = (one) => {
    say(ratio, percent(used(one)));
    length.told(used(one));
    say(free, bytes(one.avail_bytes));
    say(size, bytes(one.size_bytes));
  };
  return row;
}
