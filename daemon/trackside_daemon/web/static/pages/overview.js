// The overview: live runs, firing alerts, GPUs and the host, and below them the runs that ended last.

import { h, ENDED, syncRows, setText, badge, table, sparkline, bar, rerender, unseen } from "/static/dom.js";
import { gpuTiles } from "/static/machine/gpu_cards.js";
import { hostSummary } from "/static/machine/host.js";
import { runSelection } from "/static/overview/selection.js";
import { MAX_ALERTS, LOSSES } from "/static/vocabulary.js";
import { ago, runAddress, number, percent, plural, real, short, span, when } from "/static/format.js";
import { getJson, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { zoomReset } from "/static/charts/interaction.js";
import { withDetails } from "/static/charts/lines.js";
import { labels } from "/static/picker.js";

const SILENT_STATES = new Set(["stalled", "lost"]);

const MOST = 10;
// A run that has just ended reaches the history a moment later, so the list is reloaded with this many overviews.
const RELOADS = 3;
const COLUMNS = ["Run", "State", ["Step", "number"], ["Loss", "number"], ["Started", "wide"], ["Duration", "wide"]];

function liveRuns(selection) {
  const list = h("ul.runs");
  return {
    root: list,
    update: (runs, now) => {
      const owner = ownerOf(runs);
      const items = runs.map((run) => ({ run, now, owner: owner(run) }));
      syncRows(list, items, ({ run }) => run.id, ({ run }) => runRow(run, selection));
    },
  };
}

function runRow(first, selection) {
  const state = badge();
  const about = h("span.quiet");
  const alerts = h("a.alerts", { href: `/alerts?run=${encodeURIComponent(first.id)}` });
  const step = h("span.value");
  const ratio = h("span.quiet");
  const remaining = h("div.quiet");
  const progress = bar();
  const loss = h("span.value");
  const sparklineBox = h("div");
  const speed = h("div.value");
  const stepTime = h("div.quiet");
  const row = h("li.run.card", {},
    selection.box(first),
    h("div.who", {}, h("h3", {}, h("a.clamp", { href: runAddress(first.id), title: first.name }, first.name)),
      h("div.under", {}, state, about, alerts)),
    h("div.progress", {}, h("div", {}, step, " ", ratio), progress, remaining),
    h("div.loss", {}, h("div", {}, loss), sparklineBox),
    h("div.speed", {}, speed, stepTime));
  row.update = ({ run, now, owner }) => {
    state.update(run.state);
    setText(about, [owner, ranksText(run), attemptText(run), lastStepText(run, now)].filter(Boolean).join(" · "));
    updateAlertBadges(alerts, run.alerts);
    setText(step, run.step === undefined ? "" : `Step ${run.step}${run.total_steps ? ` / ${run.total_steps}` : ""}`);
    setText(ratio, percent(run.progress_ratio));
    setText(remaining, run.remaining_seconds > 0 ? `${span(run.remaining_seconds)} left` : "");
    progress.update(run.progress_ratio);
    setText(loss, run.loss === undefined ? "" : `Loss ${number(run.loss)}`);
    loss.classList.toggle("nonfinite", typeof run.loss === "string");
    updateSparkline(sparklineBox, run);
    setText(speed, throughputText(run));
    setText(stepTime, run.step_seconds === undefined ? "" : `${span(run.step_seconds)} per step`);
  };
  return row;
}

const ranksText = (run) => (run.world_size > 1 ? plural(run.world_size, "rank") : "");
const attemptText = (run) => (run.attempt ? `attempt ${run.attempt}` : "");
const lastStepText = (run, now) => (SILENT_STATES.has(run.state) ? `last step ${ago(run.last_step_time, now)}` : "");

function throughputText(run) {
  if (run.tokens_per_second !== undefined) return `${short(run.tokens_per_second)} tokens/s`;
  return run.samples_per_second === undefined ? "" : `${short(run.samples_per_second)} samples/s`;
}

function updateAlertBadges(element, counts) {
  const severities = ["critical", "warning"].filter((severity) => counts[severity]);
  element.hidden = !severities.length;
  rerender(element, severities.map((severity) => severity + counts[severity]).join(),
    () => severities.map((severity) => badge(severity, `${counts[severity]} ${severity}`)));
}

function updateSparkline(element, run) {
  const values = run.sparkline.map(real);
  const finite = values.filter(Number.isFinite);
  rerender(element, JSON.stringify(run.sparkline), () => {
    if (finite.length < 2) return [];
    return sparkline(values,
      `Loss so far, from ${number(values[0])} to ${number(values.at(-1))}, lowest ${number(Math.min(...finite))}`);
  });
}

function ownerOf(runs) {
  const several = new Set(runs.map((run) => run.user)).size > 1;
  return (run) => (several && run.user) || "";
}

// `onLoad(hasRuns)` is called with whether any run has ended.
function endedRuns(address, selection, onLoad) {
  const body = h("tbody");
  const list = h("div.scroll", {}, table([unseen("Compare"), ...COLUMNS], body, "table.ended"));
  const error = h("p.bad", { role: "alert", hidden: true });
  const root = h("section", { hidden: true },
    h("div.head", {}, h("h2", {}, "Ended last"), h("a", { href: "/runs" }, "All runs")), error, list);
  let lastSeen;
  let reloadsLeft = RELOADS;

  async function load(liveIds) {
    try {
      // All of the newest may be live. A run without `ended` is so new that the history does not contain it yet.
      const { runs } = await getJson(`runs?${query({ limit: MOST + liveIds.size })}`, address.signal);
      const names = labels(runs);
      const owner = ownerOf(runs);
      const items = runs.map((run, index) => ({ ...run, label: names[index], owner: owner(run) }))
        .filter((run) => run.ended !== undefined && !liveIds.has(run.id)).slice(0, MOST);
      syncRows(body, items, (run) => run.id, (run) => endedRow(run, selection));
      root.hidden = !items.length;
      error.hidden = true;
      onLoad(items.length > 0);
    } catch (problem) {
      if (address.signal.aborted || problem.status === 401) return;
      setText(error, problem.message);
      error.hidden = root.hidden = false;
    }
  }

  return {
    root,
    update({ runs }) {
      const now = runs.map((run) => `${run.id} ${ENDED.has(run.state)}`).join();
      if (now !== lastSeen) reloadsLeft = RELOADS;
      lastSeen = now;
      if (reloadsLeft === 0) return;
      reloadsLeft -= 1;
      load(new Set(runs.filter((run) => !ENDED.has(run.state)).map((run) => run.id)));
    },
  };
}

function endedRow(first, selection) {
  const state = badge();
  const [step, loss] = ["Step", "Loss"].map((name) => h(`td.number.${name.toLowerCase()}`, { "data-name": name }));
  const [started, took] = [h("td.wide"), h("td.wide")];
  const name = h("a.clamp", { href: runAddress(first.id), title: first.name });
  const owner = h("span.quiet");
  const row = h("tr", {}, h("td.box", {}, selection.box(first)), h("th.name", { scope: "row" },
    h("div.named", {}, name, owner)), h("td.state", {}, state), step, loss, started, took);
  row.update = (run) => {
    state.update(run.state);
    state.title = run.cause ?? "";
    for (const [cell, text] of [[name, run.label], [owner, run.owner], [step, number(run.step)], [loss,
      number(run.loss)], [started, when(run.started)], [took, run.ended === null ? "" : span(run.ended - run.started)]])
        setText(cell, text);
    loss.classList.toggle("nonfinite", typeof run.loss === "string");
  };
  return row;
}

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
