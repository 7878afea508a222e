// The GPUs one by one, with all that is known of them: `now` as in the overview, `about` as in the daemon's status.

import { h, rows, say } from "/static/dom.js";
import { degrees, limits, watts } from "/static/machine/gpus.js";
import { badge, facts, renew } from "/static/parts.js";
import { bytes, percent, plural, runAddress } from "/static/words.js";

export function gpuCards() {
  const list = h("ul.cards.plain");
  return {
    root: list,
    told(gpus, status) {
      const about = new Map((status?.gpus ?? []).map((one) => [one.uuid, one]));
      const every = new Map([...about.values()].map((one) => [one.uuid, silent(one)]));
      for (const one of gpus) every.set(one.uuid, one);
      rows(list, [...every.values()].map((now) => ({ now, about: about.get(now.uuid) })), ({ now }) => now.uuid, card);
    },
  };
}

// One of which the overview says nothing.
function silent({ index, uuid, name, up }) {
  return { gpu: String(index), uuid, name, up, limited: [], ranks: [] };
}

function card() {
  const [name, state, known, who] = [h("h3"), badge(), facts(), h("ul.plain")];
  const [model, uuid, ills, refused] = [h("div"), h("div.mono.quiet"), h("ul.plain.ills"), h("details", { hidden: true })];
  const row = h("li.card", {}, h("div.head", {}, name, state), model, uuid, ills, known, refused);
  row.told = ({ now, about }) => {
    row.classList.toggle("down", now.up === false);
    say(name, `GPU ${now.gpu}`);
    say(model, now.name ?? "");
    say(uuid, now.uuid);
    state.told(now.up ? "running" : "down", now.up ? "up" : "not up");
    renew(who, JSON.stringify(now.ranks), () => now.ranks.map(trains));
    known.told(numbers(now, who));
    tellIlls(ills, about?.ailments ?? []);
    tellRefused(refused, about?.refused ?? {});
  };
  return row;
}

function numbers(now, who) {
  return [
    ["Utilization", percent(now.utilization_ratio), now.utilization_ratio],
    ["SM active", percent(now.sm_active_ratio), now.sm_active_ratio],
    ["Memory", of(now.memory_used_bytes, now.memory_bytes, bytes), now.memory_used_bytes / now.memory_bytes],
    ["Power", of(now.power_watts, now.power_limit_watts, watts), now.power_watts / now.power_limit_watts],
    ["Temperature", degrees(now.temperature_celsius)],
    ["Limited by", limits(now)],
    ["Trains", now.ranks.length ? who : ""],
  ];
}

function of(some, all, words) {
  return words(some) && words(all) ? `${words(some)} of ${words(all)}` : words(some);
}

function trains({ run, name, rank }) {
  return h("li", {}, h("a.clamp", { href: runAddress(run), title: name }, name), h("span.quiet", {}, ` rank ${rank}`));
}

function tellIlls(element, ailments) {
  element.hidden = !ailments.length;
  renew(element, JSON.stringify(ailments), () => ailments.map((one) => h("li", {}, badge(one.grave ? "critical" : "warning", one.what))));
}

function tellRefused(element, refused) {
  const names = Object.keys(refused).sort();
  element.hidden = !names.length;
  renew(element, JSON.stringify(refused), () => [
    h("summary", {}, `${plural(names.length, "thing")} not answered`),
    h("dl.refused", {}, names.map((name) => [h("dt.mono", {}, name), h("dd.quiet", {}, refused[name])])),
  ]);
}
