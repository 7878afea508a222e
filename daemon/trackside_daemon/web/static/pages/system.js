// The machine: host, GPUs, their last hour, processes and the daemon.

import { getJson } from "/static/api.js";
import { h, setText } from "/static/dom.js";
import { gpuCards } from "/static/machine/gpu_cards.js";
import { hostDetails } from "/static/machine/host.js";
import { daemonDetails } from "/static/machine/daemon.js";
import { LastHour } from "/static/machine/last_hour.js";
import { gpuPause } from "/static/machine/gpu_pause.js";
import { rayDetails } from "/static/machine/ray.js";
import { SYSTEM_MS, poll } from "/static/polling.js";
import { processTable } from "/static/machine/processes.js";

export const title = "System";

export function show(/** @type {Address} */ address) {
  const [host, gpus, ray, processes, daemon] = [hostDetails(), gpuCards(), rayDetails(),
    processTable(address.signal, () => load()), daemonDetails()];
  const raySection = h("section", { "aria-labelledby": "ray", hidden: true }, h("h2", { id: "ray" }, "Ray"), ray.root);
  const errorLine = h("p.bad", { role: "alert", hidden: true });
  const pause = gpuPause(() => load(), address.signal);
  const lastHour = new LastHour(address);
  const body = h("div", { hidden: true },
    h("section", { "aria-labelledby": "host" }, h("h2", { id: "host" }, "Host"), host.root),
    h("section", { "aria-labelledby": "gpus" }, h("div.head", {}, h("h2", { id: "gpus" }, "GPUs"), pause.root),
      gpus.root),
    lastHour.root,
    raySection,
    h("section", { "aria-labelledby": "processes" }, h("h2", { id: "processes" }, "Processes"), processes.root),
    h("section", { "aria-labelledby": "daemon" }, h("h2", { id: "daemon" }, "Daemon"), daemon.root));
  let overview;
  let status;

  function updateParts() {
    if (!status || !overview) return;
    host.update(overview);
    gpus.update(overview.gpus, status);
    raySection.hidden = !overview.ray;
    if (overview.ray) ray.update(overview.ray);
    pause.update(status);
    daemon.update(status, overview.time);
    body.hidden = false;
  }

  async function load() {
    try {
      const answers = await Promise.all(
        ["status", "processes"].map((path) => getJson(path, address.signal)));
      status = answers[0];
      processes.update(answers[1].processes);
      updateParts();
      errorLine.hidden = true;
    } catch (problem) {
      if (address.signal.aborted || problem.status === 401) return;
      setText(errorLine, problem.message);
      errorLine.hidden = false;
    }
  }

  poll(SYSTEM_MS, load, address.signal);
  return {
    root: h("div", {}, h("h1", {}, "System"), errorLine, body),
    update(newest) {
      overview = newest;
      lastHour.update();
      updateParts();
    },
  };
}
