// The GPUs at a glance: a small tile each, eight in a row as they are in a machine.

import { h, rows, say } from "/static/dom.js";
import { badge, bar, renew } from "/static/parts.js";
import { percent, runAddress } from "/static/words.js";

const MANY = 16;
const GIB = 1024 ** 3;

export const limits = (gpu) => gpu.limited.map((one) => one.replaceAll("_", " ")).join(", ");

export function gpuTiles() {
  const list = h("ul.gpus");
  const name = h("span.quiet");
  const root = h("section", { hidden: true }, h("div.head", {}, h("h2", {}, "GPUs"), name, h("a", { href: "/system" }, "Details")), list);
  return {
    root,
    told({ gpus }) {
      root.hidden = !gpus.length;
      list.classList.toggle("many", gpus.length > MANY);
      say(name, kinds(gpus));
      rows(list, gpus, (gpu) => gpu.gpu + gpu.uuid, tile);
    },
  };
}

function kinds(gpus) {
  const names = [...new Set(gpus.map((gpu) => gpu.name).filter(Boolean))];
  return names.map((name) => `${gpus.filter((gpu) => gpu.name === name).length} × ${name}`).join(", ");
}

function tile(first) {
  const [ratio, length, memory, power, heat, who] = [h("span.value"), bar(), h("div.quiet.memory"), h("span.power"), h("span"), h("div.ranks")];
  const state = badge();
  const limited = badge();
  const head = h("div.head", {}, h("h3", {}, h("span.unseen", {}, "GPU "), first.gpu), ratio, state);
  const row = h("li.card", {}, head, length, memory, h("div.quiet", {}, power, " ", heat), who, limited);
  row.told = (gpu) => {
    row.classList.toggle("down", !gpu.up);
    say(ratio, percent(gpu.utilization_ratio));
    state.told(gpu.up ? undefined : "down", "not up");
    length.told(gpu.utilization_ratio);
    say(memory, gib(gpu));
    say(power, [watts(gpu.power_watts), degrees(gpu.temperature_celsius) && "·"].filter(Boolean).join(" "));
    say(heat, degrees(gpu.temperature_celsius));
    limited.told(gpu.limited.length ? "warning" : undefined, limits(gpu));
    limited.title = limits(gpu);
    renew(who, JSON.stringify(gpu.ranks), () => ranks(gpu));
  };
  return row;
}

export const watts = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} W` : "");
export const degrees = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} °C` : "");

function gib(gpu) {
  const [some, all] = [gpu.memory_used_bytes / GIB, gpu.memory_bytes / GIB];
  return Number.isFinite(some) && Number.isFinite(all) ? `${some.toFixed(1)} / ${all.toFixed(0)} GiB` : "";
}

// One of the ranks, by its run's name; how many there are besides.
function ranks(gpu) {
  const [first, ...others] = gpu.ranks;
  if (!first) return [];
  const all = gpu.ranks.map((one) => `${one.name}:${one.rank}`).join(", ");
  const link = h("a", { href: runAddress(first.run), title: all }, h("span", {}, first.name), h("b", {}, `:${first.rank}`));
  return [link, ...(others.length ? [h("span.quiet", {}, `+${others.length}`)] : [])];
}
