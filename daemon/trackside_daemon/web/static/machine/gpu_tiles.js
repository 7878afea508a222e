// The GPUs as small tiles, eight in a row.

import { h, syncRows, setText, badge, bar, rerender } from "/static/dom.js";
import { percent, runAddress, usedOfTotal } from "/static/format.js";

const COMPACT_ABOVE = 16;

export const limitReasons = (gpu) => gpu.limited.map((reason) => reason.replaceAll("_", " ")).join(", ");

export function gpuTiles() {
  const list = h("ul.gpus");
  const name = h("span.quiet");
  const root = h("section", { hidden: true },
    h("div.head", {}, h("h2", {}, "GPUs"), name, h("a", { href: "/system" }, "Details")), list);
  return {
    root,
    update({ gpus }) {
      root.hidden = !gpus.length;
      list.classList.toggle("many", gpus.length > COMPACT_ABOVE);
      setText(name, gpuModels(gpus));
      syncRows(list, gpus, (gpu) => gpu.gpu + gpu.uuid, tile);
    },
  };
}

function gpuModels(gpus) {
  const names = [...new Set(gpus.map((gpu) => gpu.name).filter(Boolean))];
  return names.map((name) => `${gpus.filter((gpu) => gpu.name === name).length} × ${name}`).join(", ");
}

function tile(first) {
  const [ratio, usageBar, memory, power, temperature, rankList] = [h("span.value"), bar(), h("div.quiet.memory"),
    h("span.power"), h("span"), h("div.ranks")];
  const state = badge();
  const limited = badge();
  const head = h("div.head", {}, h("h3", {}, h("span.unseen", {}, "GPU "), first.gpu), ratio, state);
  const row = h("li.card", {}, head, usageBar, memory, h("div.quiet", {}, power, " ", temperature), rankList, limited);
  row.update = (gpu) => {
    row.classList.toggle("down", !gpu.up);
    setText(ratio, percent(gpu.utilization_ratio));
    state.update(gpu.up ? undefined : "down", "down");
    usageBar.update(gpu.utilization_ratio);
    setText(memory, usedOfTotal(gpu.memory_used_bytes, gpu.memory_bytes));
    setText(power, [formatWatts(gpu.power_watts), formatCelsius(gpu.temperature_celsius) && "·"].filter(Boolean)
      .join(" "));
    setText(temperature, formatCelsius(gpu.temperature_celsius));
    limited.update(gpu.limited.length ? "warning" : undefined, limitReasons(gpu));
    limited.title = limitReasons(gpu);
    rerender(rankList, JSON.stringify(gpu.ranks), () => rankLinks(gpu));
  };
  return row;
}

export const formatWatts = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} W` : "");
export const formatCelsius = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} °C` : "");

// Returns a link to the first rank's run, and the number of further ranks.
function rankLinks(gpu) {
  const [first, ...others] = gpu.ranks;
  if (!first) return [];
  const total = gpu.ranks.map((rank) => `${rank.name}:${rank.rank}`).join(", ");
  const link = h("a", { href: runAddress(first.run), title: total }, h("span", {}, first.name),
    h("b", {}, `:${first.rank}`));
  return [link, ...(others.length ? [h("span.quiet", {}, `+${others.length}`)] : [])];
}
