// The overview: live runs, firing alerts, GPUs and the host, and below them the runs that ended last.

import { h, ENDED } from "/static/dom.js";
import { gpuTiles } from "/static/machine/gpu_tiles.js";
import { hostSummary } from "/static/machine/host.js";
import { runSelection } from "/static/overview/selection.js";
import { endedRuns } from "/static/overview/ended_runs.js";
import { firingAlerts } from "/static/overview/firing_alerts.js";
import { liveRuns } from "/static/overview/live_runs.js";
import { lossChart } from "/static/overview/loss_chart.js";

export const title = "Overview";

const EXAMPLE = "import trackside\n…\ntrackside.push(step=step, loss=loss)";

export function show(/** @type {Address} */ address) {
  const selection = runSelection();
  const host = hostSummary();
  const alerts = firingAlerts();
  const gpus = gpuTiles();
  const liveList = liveRuns(selection);
  const loss = lossChart(address.signal);
  const noLiveRun = h("p.quiet", { hidden: true }, "No runs are live.");
  const hint = h("p", {}, "No runs yet. Add trackside.push(step=step, loss=loss) to your training script:");
  const firstRunNotice = h("section.notice.empty", { hidden: true }, hint, h("pre", {}, EXAMPLE));

  let liveCount;
  let hasEnded;
  const updateEmptyStates = () => {
    noLiveRun.hidden = liveCount !== 0 || hasEnded !== true;
    firstRunNotice.hidden = liveCount !== 0 || hasEnded !== false;
  };
  const endedList = endedRuns(address, selection, (hasRuns) => {
    hasEnded = hasRuns;
    updateEmptyStates();
  });
  const header = h("div.top", {}, h("h1", {}, "Overview"), host.root);
  const parts = [liveList, alerts, gpus, endedList, selection].map((part) => part.root);
  const root = h("div.overview", {}, header, loss.root, h("h2", {}, "Runs"), noLiveRun, firstRunNotice, parts);
  return {
    root,
    update(/** @type {Overview} */ overview) {
      const running = overview.runs.filter((run) => !ENDED.has(run.state));
      liveCount = running.length;
      updateEmptyStates();
      liveList.update(running, overview.time);
      loss.update(running);
      for (const part of [host, alerts, gpus, endedList]) part.update(overview);
    },
  };
}
