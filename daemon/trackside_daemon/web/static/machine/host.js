// The daemon's host: as one line, or in detail.

import { h, liveRow, syncRows, setText, bar, facts, table } from "/static/dom.js";
import { bytes, percent, usedOfTotal } from "/static/format.js";

const LEVELS = { cpu: [0.8, 0.95], memory: [0.85, 0.95], disk: [0.85, 0.95] };
const usedRatio = (disk) => (disk.size_bytes > 0 ? (disk.size_bytes - disk.avail_bytes) / disk.size_bytes : undefined);
const usedMemory = (host) => host.memory_bytes - host.memory_available_bytes;

function hostFacts(host) {
  const fullest = host.disks.filter((a) => usedRatio(a) >= 0).sort((a, b) => usedRatio(b) - usedRatio(a))[0];
  return [
    ["CPU", `${percent(host.cpu_ratio)}${host.cpus ? ` of ${host.cpus}` : ""}`, host.cpu_ratio, LEVELS.cpu],
    ["Memory", usedOfTotal(usedMemory(host), host.memory_bytes), usedMemory(host) / host.memory_bytes, LEVELS.memory],
    ["Fullest disk", fullest && `${fullest.mountpoint} ${percent(usedRatio(fullest))}`, fullest && usedRatio(fullest),
      LEVELS.disk],
    ["Network", networkText(host)],
  ];
}

function networkText(host) {
  const [down, up] = [host.receive_bytes_per_second, host.transmit_bytes_per_second].map(bytes);
  return [down && `in ${down}/s`, up && `out ${up}/s`].filter(Boolean).join(", ");
}

// Returns the host in one line.
export function hostSummary() {
  const root = facts();
  root.classList.add("strip");
  return { root, update: ({ host }) => root.update(hostFacts(host)) };
}

// Returns the host with its disks.
export function hostDetails() {
  const name = h("h3");
  const readings = facts();
  const body = h("tbody");
  const columns = ["Disk", "Used", ["Free", "number"], ["Size", "number.wide"]];
  const disks = h("div.card.scroll", { tabindex: "0", role: "group", "aria-label": "Disks" }, table(columns, body));
  return {
    root: h("div.pair", {}, h("div.card", {}, name, readings), disks),
    update({ host }) {
      setText(name, host.name ?? "This machine");
      const swap = host.swap_used_bytes === undefined ? "" : `${bytes(host.swap_used_bytes)} used`;
      readings.update([...hostFacts(host).filter(([name]) => name !== "Fullest disk"), ["Swap", swap]]);
      disks.hidden = !host.disks.length;
      syncRows(body, host.disks, (disk) => disk.mountpoint, disk);
    },
  };
}

function disk() {
  const [ratio, usageBar] = [h("span"), bar()];
  const usage = h("div", {}, ratio, usageBar);
  return liveRow(["th.name", "td.usage", "td.number", "td.number.wide"], (disk) => {
    setText(ratio, percent(usedRatio(disk)));
    usageBar.update(usedRatio(disk), LEVELS.disk);
    return [disk.mountpoint, usage, bytes(disk.avail_bytes), bytes(disk.size_bytes)];
  });
}
