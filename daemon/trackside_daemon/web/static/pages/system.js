// The machine: host, GPUs, the trainings' processes, and the daemon itself.

import { ask } from "/static/api.js";
import { h, say } from "/static/dom.js";
import { gpuCards } from "/static/machine/cards.js";
import { hostWhole } from "/static/machine/host.js";
import { daemonItself } from "/static/machine/itself.js";
import { pausing } from "/static/machine/pausing.js";
import { processTable } from "/static/machine/processes.js";

export const title = "System";

const EVERY_MS = 2000;

export function show(place) {
  const [host, gpus, processes, daemon] = [hostWhole(), gpuCards(), processTable(), daemonItself()];
  const wrong = h("p.bad", { role: "alert", hidden: true });
  const pause = pausing(() => load(), place.signal);
  const body = h(
    "div",
    { hidden: true },
    h("section", { "aria-labelledby": "host" }, h("h2", { id: "host" }, "Host"), host.root),
    h("section", { "aria-labelledby": "gpus" }, h("div.head", {}, h("h2", { id: "gpus" }, "GPUs"), pause.root), gpus.root),
    h("section", { "aria-labelledby": "processes" }, h("h2", { id: "processes" }, "Processes"), processes.root),
    h("section", { "aria-labelledby": "daemon" }, h("h2", { id: "daemon" }, "Daemon"), daemon.root),
  );
  let overview;
  let status;

  function tell() {
    if (!status || !overview) return;
    host.told(overview);
    gpus.told(overview.gpus, status);
    pause.told(status);
    daemon.told(status, overview.time);
    body.hidden = false;
  }

  async function load() {
    try {
      const answers = await Promise.all(["status", "processes"].map((one) => ask(one, { signal: place.signal })));
      status = answers[0];
      processes.told(answers[1].processes);
      tell();
      wrong.hidden = true;
    } catch (problem) {
      if (place.signal.aborted || problem.status === 401) return;
      say(wrong, problem.message);
      wrong.hidden = false;
    }
  }

  async function go() {
    while (!place.signal.aborted) {
      if (!document.hidden) await load();
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  }

  go();
  return {
    root: h("div", {}, h("h1", {}, "System"), wrong, body),
    told(newest) {
      overview = newest;
      tell();
    },
  };
}
