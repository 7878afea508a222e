// The overview: live runs, firing alerts, GPUs and the host, and below them the runs that ended last.

import { h, ENDED, syncRows, setText, badge, table } from "/static/dom.js";
import { gpuTiles } from "/static/machine/gpu_tiles.js";
import { hostSummary } from "/static/machine/host.js";
import { runSelection } from "/static/overview/selection.js";
import { endedRuns } from "/static/overview/ended_runs.js";
import { liveRuns } from "/static/overview/live_runs.js";
import { lossChart } from "/static/overview/loss_chart.js";
import { MAX_ALERTS } from "/static/vocabulary.js";
import { ago, runAddress } from "/static/format.js";

export const title = "Overview";

const EXAMPLE = "import trackside\n…\ntrackside.push(step=step, loss=loss)";

const MAX_SHOWN = 5;

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

export function firingAlerts() {
  const body = h("tbody");
  const allLink = h("a", { href: "/alerts" });
  const list = table(["Severity", "Alert", ["Run", "wide"], "Summary", "Since"], body, "table.firing");
  const head = h("div.head", {}, h("h2", {}, "Alerts"), allLink);
  const root = h("section", { hidden: true }, head, h("div.scroll", {}, list));
  return {
    root,
    update({ alerts, time }) {
      root.hidden = !alerts.length;
      setText(allLink,
        alerts.length > MAX_SHOWN ? `All ${alerts.length}${alerts.length >= MAX_ALERTS ? "+" : ""}` : "All alerts");
      const worst = alerts.slice(0, MAX_SHOWN).map((alert) => ({ alert, time }));
      syncRows(body, worst, ({ alert }) => JSON.stringify([alert.alert, alert.run, alert.rank, alert.key, alert.gpu,
        alert.subject, alert.started]), alertRow);
    },
  };
}

function alertRow({ alert }) {
  const severity = badge();
  const name = h("a", {}, alert.alert);
  const summary = h("span.clamp");
  const since = h("td.since");
  const run = alert.run ? h("a.clamp", { href: runAddress(alert.run), title: alert.name }, alert.name) : undefined;
  const row = h("tr", {}, h("td.severity", {}, severity), h("td.alert", {}, name), h("td.text.wide", {}, run),
    h("td.text.summary", {}, summary), since);
  row.update = (newest) => {
    severity.update(newest.alert.severity);
    if (newest.alert.id !== null) name.setAttribute("href", `/alerts/${newest.alert.id}`);
    setText(summary, newest.alert.summary);
    summary.setAttribute("title", newest.alert.summary);
    setText(since, `${ago(newest.alert.started, newest.time)}${newest.alert.silenced ? ", silenced" : ""}`);
  };
  return row;
}
