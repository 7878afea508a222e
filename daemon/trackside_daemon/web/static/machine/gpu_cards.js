// One card per GPU with all its values: `now` from the overview, `about` from the daemon's status.

import { h, syncRows, setText, badge, facts, rerender, bar } from "/static/dom.js";
import { percent, plural, runAddress, usedOfTotal, when } from "/static/format.js";
import { post } from "/static/api.js";
import { confirmDialog } from "/static/confirm.js";

const PAUSE_SECONDS = 600;
const EXPLANATION = "For ten minutes, the daemon closes the driver's device files, reads no GPU and raises no GPU " +
  "alerts. Training continues.";

const COMPACT_ABOVE = 16;

const limitReasons = (gpu) => gpu.limited.map((reason) => reason.replaceAll("_", " ")).join(", ");

export function gpuCards() {
  const list = h("ul.cards.plain");
  return {
    root: list,
    update(gpus, status) {
      const about = new Map((status?.gpus ?? []).map((gpu) => [gpu.uuid, gpu]));
      // The overview may not contain them all.
      const cards = new Map([...about.values()].map(({ index, uuid, name, up }) =>
        [uuid, { gpu: String(index), uuid, name, up, limited: [], ranks: [] }]));
      for (const gpu of gpus) cards.set(gpu.uuid, gpu);
      syncRows(list, [...cards.values()].map((now) => ({ now, about: about.get(now.uuid) })), ({ now }) => now.uuid,
        card);
    },
  };
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

export function gpuPause(onChange, signal) {
  const stateText = h("p.quiet", { role: "status" });
  const holders = h("p.warn", { role: "alert" });
  const pause = h("button.needs-admin", { onclick: () => runAction(pauseReading) }, "Pause reading");
  const resume = h("button.strong.needs-admin", { onclick: () => runAction(resumeReading) }, "Resume reading");
  const root = h("div.tools.pausing", {}, stateText, pause, resume, holders);

  async function runAction(call) {
    pause.disabled = resume.disabled = true;
    try {
      await call();
    } catch (problem) {
      setText(holders, problem.message);
    }
    pause.disabled = resume.disabled = false;
  }

  async function pauseReading() {
    if (!(await confirmDialog("Pause reading the GPUs?", EXPLANATION, "Pause", signal))) return;
    const answer = await post("gpu/pause", { for: PAUSE_SECONDS });
    const others = answer.holders.map((process) => `${process.name} (${process.pid})`).join(", ");
    setText(holders, [!answer.released && "The driver hangs and still holds the daemon's own worker.",
      others && `Still in use by ${others}.`].filter(Boolean).join(" "));
    await onChange();
  }

  async function resumeReading() {
    await post("gpu/resume", {});
    setText(holders, "");
    await onChange();
  }

  return {
    root,
    update({ nvml, gpus }) {
      const paused = nvml?.paused_until ?? null;
      pause.hidden = nvml === null || nvml.absent || paused !== null;
      resume.hidden = paused === null;
      setText(stateText, describe(nvml, gpus, paused));
    },
  };
}

function describe(nvml, gpus, paused) {
  if (nvml === null) return "GPU readings are off: the daemon was started with --no-collector.gpu.";
  if (paused !== null) return paused === "inf" ? "Paused until you resume." : `Paused until ${when(paused)}.`;
  if (nvml.absent) return "This machine has no GPU or no NVIDIA driver.";
  if (nvml.error) return nvml.error;
  const driver = [nvml.driver_version && `driver ${nvml.driver_version}`,
    nvml.cuda_version && `CUDA ${nvml.cuda_version}`];
  const countText = nvml.expected > gpus.length
    ? `${gpus.length} of ${nvml.expected} GPUs present` : plural(gpus.length, "GPU");
  return [countText, ...driver].filter(Boolean).join(" · ");
}

// The GPUs as small tiles, eight in a row.
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

const formatWatts = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} W` : "");
const formatCelsius = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} °C` : "");

// Returns a link to the first rank's run, and the number of further ranks.
function rankLinks(gpu) {
  const [first, ...others] = gpu.ranks;
  if (!first) return [];
  const total = gpu.ranks.map((rank) => `${rank.name}:${rank.rank}`).join(", ");
  const link = h("a", { href: runAddress(first.run), title: total }, h("span", {}, first.name),
    h("b", {}, `:${first.rank}`));
  return [link, ...(others.length ? [h("span.quiet", {}, `+${others.length}`)] : [])];
}
