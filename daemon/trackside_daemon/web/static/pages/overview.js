// The overview: live runs, firing alerts, GPUs and the host, and below them the runs that ended last.

import { h, ENDED, syncRows, setText, badge, table } from "/static/dom.js";
import { gpuTiles } from "/static/machine/gpu_cards.js";
import { hostSummary } from "/static/machine/host.js";
import { runSelection } from "/static/overview/selection.js";
import { endedRuns, liveRuns } from "/static/overview/live_runs.js";
import { MAX_ALERTS, LOSSES } from "/static/vocabulary.js";
import { ago, runAddress } from "/static/format.js";
import { getJson, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { zoomReset } from "/static/charts/interaction.js";
import { withDetails } from "/static/charts/lines.js";
import { labels } from "/static/picker.js";

export const title = "Overview";

const EXAMPLE = "import trackside\n…\ntrackside.push(step=step, loss=loss)";

const MAX_SHOWN = 5;

const MOST_RUNS = 8;
const HEIGHT = 280;

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

function firingAlerts() {
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

function lossChart(signal) {
  let runs = [];
  let shown = "";
  const chart = new Chart({ title: "Loss of the live runs", robust: true, height: HEIGHT,
    onZoom: (from, to) => reset.update(from, to), load: (request) => load(runs, request) }, signal);
  const reset = zoomReset(() => chart.zoom());
  chart.tools.prepend(reset.button);
  const root = h("section.overview-loss", { hidden: true, "aria-label": "Loss" }, chart.root);
  return {
    root,
    update(live) {
      runs = live.filter((run) => run.loss !== undefined).slice(0, MOST_RUNS);
      root.hidden = !runs.length;
      const now = runs.map((run) => run.id).join();
      if (now !== shown) chart.reload();
      else chart.refresh();
      shown = now;
    },
  };
}

async function load(runs, { by, from, to, points, signal }) {
  if (!runs.length) return [];
  const { series } = await getJson(
    `series?${query({ run: runs.map((run) => run.id), key: LOSSES, by, from, to, points, mean: true })}`, signal);
  const names = labels(runs);
  return runs.flatMap((run, index) => {
    const own = series.filter((item) => item.run === run.id && item.attempt === run.attempt && item.points.length);
    const item = LOSSES.map((key) => own.find((each) => each.key === key)).find(Boolean);
    return item ? [{ label: names[index], index, points: withDetails(item) }] : [];
  });
}
