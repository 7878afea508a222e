// One card per GPU with all its values: `now` from the overview, `about` from the daemon's status.

import { h, syncRows, setText, badge, facts, rerender } from "/static/dom.js";
import { formatCelsius, limitReasons, formatWatts } from "/static/machine/gpu_tiles.js";
import { percent, plural, runAddress, usedOfTotal } from "/static/format.js";

export function gpuCards() {
  const list = h("ul.cards.plain");
  return {
    root: list,
    update(gpus, status) {
      const about = new Map((status?.gpus ?? []).map((gpu) => [gpu.uuid, gpu]));
      const cards = new Map([...about.values()].map((gpu) => [gpu.uuid, cardFromStatus(gpu)]));
      for (const gpu of gpus) cards.set(gpu.uuid, gpu);
      syncRows(list, [...cards.values()].map((now) => ({ now, about: about.get(now.uuid) })), ({ now }) => now.uuid,
        card);
    },
  };
}

// A card for a GPU that the overview does not contain.
function cardFromStatus({ index, uuid, name, up }) {
  return { gpu: String(index), uuid, name, up, limited: [], ranks: [] };
}

function card() {
  const [name, state, readings, rankList] = [h("h3"), badge(), facts(), h("ul.plain")];
  const [model, uuid, problemList, unavailable] = [h("div"), h("div.mono.quiet.uuid"), h("ul.plain.ills"),
    h("details", { hidden: true })];
  const row = h("li.card", {}, h("div.head", {}, name, state), model, uuid, readings, problemList, unavailable);
  row.update = ({ now, about }) => {
    row.classList.toggle("down", now.up === false);
    setText(name, `GPU ${now.gpu}`);
    setText(model, now.name ?? "");
    setText(uuid, now.uuid);
    uuid.title = now.uuid;
    state.update(now.up ? "running" : "down", now.up ? "up" : "down");
    rerender(rankList, JSON.stringify(now.ranks), () => now.ranks.map(rankItem));
    readings.update(numbers(now, rankList));
    updateProblems(problemList, about?.ailments ?? []);
    updateUnavailable(unavailable, about?.refused ?? {});
  };
  return row;
}

function numbers(now, rankList) {
  return [
    ["Utilization", percent(now.utilization_ratio), now.utilization_ratio],
    ["SM active", percent(now.sm_active_ratio), now.sm_active_ratio],
    ["Memory", usedOfTotal(now.memory_used_bytes, now.memory_bytes), now.memory_used_bytes / now.memory_bytes,
      [0.92, 0.98]],
    ["Power", usedOfTotal(now.power_watts, now.power_limit_watts, formatWatts),
      now.power_watts / now.power_limit_watts],
    ["Temperature", formatCelsius(now.temperature_celsius)],
    ["Training", now.ranks.length ? rankList : ""],
    ["Limited by", limitReasons(now)],
  ];
}

function rankItem({ run, name, rank }) {
  return h("li", {}, h("a.clamp", { href: runAddress(run), title: name }, name), h("span.quiet", {}, ` rank ${rank}`));
}

function updateProblems(element, ailments) {
  element.hidden = !ailments.length;
  rerender(element, JSON.stringify(ailments),
    () => ailments.map((ailment) => h("li", {}, badge(ailment.grave ? "critical" : "warning", ailment.what))));
}

function updateUnavailable(element, unavailable) {
  const names = Object.keys(unavailable).sort();
  element.hidden = !names.length;
  rerender(element, JSON.stringify(unavailable), () => [
    h("summary", {}, `${plural(names.length, "value")} not available`),
    h("dl.refused", {}, names.map((name) => [h("dt.mono", {}, name), h("dd.quiet", {}, unavailable[name])])),
  ]);
}
