// The overview: a row of each live run, trouble first, their losses, firing alerts, GPUs and the host, and below them
// the runs that ended last.

import { h, ENDED, syncRows, setText, setTitle, badge, bar, rerender } from "/static/dom.js";
import { firingList } from "/static/alerts/firing.js";
import { gpuTiles } from "/static/machine/gpu_cards.js";
import { hostSummary } from "/static/machine/host.js";
import { runSelection } from "/static/overview/selection.js";
import { MAX_ALERTS, LOSSES } from "/static/vocabulary.js";
import { ago, runAddress, number, ofPlanned, plural, real, short, span, when } from "/static/format.js";
import { getJson, getSeries, query } from "/static/api.js";
import { Chart } from "/static/charts/chart.js";
import { zoomReset } from "/static/charts/interaction.js";
import { withDetails } from "/static/charts/lines.js";
import { COLORS } from "/static/charts/colors.js";
import { dot, labels } from "/static/picker.js";
import { Curves, lossCurve } from "/static/runs/curves.js";

const MOST_ENDED = 10;
// A run that has just ended reaches the history a moment later, so the list is reloaded with this many overviews.
const RELOADS = 3;

// One row of a run: `text` are the texts of its cells, and `curve` its losses.
function runRow(first, selection) {
  const state = badge();
  const alerts = h("a", { href: `/alerts?run=${encodeURIComponent(first.id)}` });
  const cells = Object.fromEntries(["about", "loss", "step", "left", "speed"].map((name) => [name, h(`span.${name}`)]));
  const name = h("a.clamp", { href: runAddress(first.id), title: first.name });
  const [line, curve, progress] = [h("span"), h("span.curve"), bar()];
  const row = h("li.run", {}, selection.box(first), h("span.who", {}, line, name), state,
    h("span.what", {}, alerts, " ", cells.about), curve, cells.loss, h("span.steps", {}, cells.step, progress),
    cells.left, cells.speed);
  row.update = ({ run, label, color, text, values, level }) => {
    row.className = `run ${level}`;
    state.update(run.state);
    const counts = LEVELS.filter((severity) => run.alerts?.[severity]);
    alerts.hidden = !counts.length;
    setText(alerts, counts.map((severity) => `${run.alerts[severity]} ${severity}`).join(", ") + (text.about && ":"));
    for (const [cell, element] of Object.entries(cells)) setText(element, text[cell] ?? "");
    setText(name, label);
    cells.about.title = text.about;
    rerender(line, String(color), () => (color === undefined ? [] : dot(color)));
    cells.loss.classList.toggle("nonfinite", typeof run.loss === "string");
    progress.update(run.progress_ratio);
    rerender(curve, JSON.stringify(values), () => lossCurve(values));
  };
  return row;
}

// The live runs, those with trouble first: their verdict, or else their first alert, or what they are.
function liveItems(runs, colors, { time: now, alerts }) {
  const owner = ownerOf(runs);
  const items = runs.map((run) => ({ run, label: run.name, color: colors.get(run.id), level: troubleOf(run),
    values: run.sparkline.map(real), text: {
      about: run.verdict || alerts.find((item) => item.run === run.id && item.severity !== "info")?.summary ||
        [owner(run), run.world_size > 1 && plural(run.world_size, "rank"),
        run.attempt && `attempt ${run.attempt}`].filter(Boolean).join(" · "),
      loss: number(run.loss),
      step: Number.isFinite(run.step) ? `${number(run.step)}${run.total_steps
        ? ` ${ofPlanned(run.step, run.total_steps, run.progress_ratio)}` : ""}` : "",
      left: SILENT_STATES.has(run.state) ? `step ${ago(run.last_step_time, now)}`
        : span(run.remaining_seconds || undefined).replace(/.$/, "$& left"),
      speed: throughputText(run) || (Number.isFinite(run.step_seconds) ? `${span(run.step_seconds)} per step` : ""),
    } }));
  return items.sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level));
}

const SILENT_STATES = new Set(["stalled", "lost"]);
const LEVELS = ["critical", "warning", ""];

// How much a run needs somebody: what stops it comes first.
export function troubleOf(run) {
  if (SILENT_STATES.has(run.state) || run.alerts.critical) return "critical";
  return run.verdict || run.alerts.warning ? "warning" : "";
}

function throughputText(run) {
  if (Number.isFinite(run.tokens_per_second)) return `${short(run.tokens_per_second)} tokens/s`;
  return Number.isFinite(run.samples_per_second) ? `${short(run.samples_per_second)} samples/s` : "";
}

function ownerOf(runs) {
  const several = new Set(runs.map((run) => run.user)).size > 1;
  return (run) => (several && run.user) || "";
}

// The runs that ended last; `onLoad(runs)` is called with them.
function endedRuns(address, selection, onLoad) {
  const list = h("ul.runs.ended");
  const error = h("p.bad", { role: "alert" });
  const root = h("section", { hidden: true },
    h("div.head", {}, h("h2", {}, "Ended last"), h("a", { href: "/runs" }, "All runs")), error, list);
  const curves = new Curves(() => draw(), address.signal);
  let ended = [];
  let lastSeen;
  let reloadsLeft = RELOADS;

  async function load(liveIds) {
    try {
      // All of the newest may be live. A run without `ended` is so new that the history does not contain it yet.
      const { runs } = await getJson(`runs?${query({ limit: MOST_ENDED + liveIds.size })}`, address.signal);
      const names = labels(runs);
      ended = runs.map((run, index) => ({ ...run, label: names[index], owner: ownerOf(runs)(run) }))
        .filter((run) => run.ended !== undefined && !liveIds.has(run.id)).slice(0, MOST_ENDED);
      setText(error, "");
      root.hidden = !ended.length;
      curves.want(ended);
      draw();
      onLoad(ended);
    } catch (problem) {
      if (address.signal.aborted || problem.status === 401) return;
      setText(error, problem.message);
      root.hidden = false;
    }
  }

  function draw() {
    const items = ended.map((run) => ({ run, label: run.label, level: "", values: curves.get(run) ?? [], text: {
      about: [run.owner, run.cause].filter(Boolean).join(" · "), loss: number(run.loss), step: number(run.step),
      left: run.ended === null ? "" : `in ${span(run.ended - run.started)}`, speed: when(run.started) } }));
    syncRows(list, items, ({ run }) => run.id, ({ run }) => runRow(run, selection));
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

export const title = "Overview";

const EXAMPLE = "import trackside\n…\ntrackside.push(step=step, loss=loss)";

const MAX_SHOWN = 5;
const HEIGHT = 260;

export function show(/** @type {Address} */ address) {
  const selection = runSelection();
  const host = hostSummary();
  const alerts = firingAlerts();
  const gpus = gpuTiles();
  const list = h("ul.runs");
  const loss = lossChart(address.signal);
  const verdict = h("span.quiet", { role: "status" });
  const hint = h("p", {}, "No runs yet. Add trackside.push(step=step, loss=loss) to your training script:");
  const firstRunNotice = h("section.notice.empty", { hidden: true }, hint, h("pre", {}, EXAMPLE));

  let live;
  let ended;
  const update = () => {
    firstRunNotice.hidden = live?.length !== 0 || ended?.length !== 0;
    if (live?.length === 0 && ended) setText(verdict, "No runs are live.");
    if (live) loss.update(live.length ? live : ended ?? [], live.length > 0);
  };
  const endedList = endedRuns(address, selection, (runs) => {
    ended = runs;
    update();
  });
  const header = h("div.top", {}, h("h1", {}, "Overview"), host.root);
  const runs = h("section", {}, h("div.head", {}, h("h2", {}, "Runs"), verdict), list, firstRunNotice);
  const root = h("div.overview", {}, header, runs, loss.root, alerts.root, gpus.root, endedList.root, selection.root);
  return {
    root,
    update(/** @type {Overview} */ overview) {
      live = overview.runs.filter((run) => !ENDED.has(run.state));
      const troubled = live.filter(troubleOf).length;
      if (live.length) setText(verdict, troubled ? `${troubled} of ${live.length} live need attention`
        : `${plural(live.length, "live run")}, no warnings`);
      update();
      syncRows(list, liveItems(live, loss.colors, overview), ({ run }) => run.id,
        ({ run }) => runRow(run, selection));
      for (const part of [host, alerts, gpus, endedList]) part.update(overview);
    },
  };
}

function firingAlerts() {
  const allLink = h("a", { href: "/alerts" });
  const list = firingList();
  const root = h("section.alerting.firing", { hidden: true }, h("div.head", {}, h("h2", {}, "Alerts"), allLink),
    list.root);
  return {
    root,
    update({ alerts, time }) {
      root.hidden = !alerts.length;
      setText(allLink,
        alerts.length > MAX_SHOWN ? `All ${alerts.length}${alerts.length >= MAX_ALERTS ? "+" : ""}` : "All alerts");
      list.update(alerts.slice(0, MAX_SHOWN), new Map(), time);
    },
  };
}

// The losses of the newest live runs; while none is live, of those that ended last.
function lossChart(signal) {
  let runs = [];
  let shown = "";
  const chart = new Chart({ title: "Loss", robust: true, height: HEIGHT,
    onZoom: (from, to) => reset.update(from, to), load: (request) => load(runs, request) }, signal);
  const reset = zoomReset(() => chart.zoom());
  chart.tools.prepend(reset.button);
  const root = h("section.overview-loss", { hidden: true, "aria-label": "Loss" }, chart.root);
  const part = {
    root,
    colors: new Map(), // Of the lines, by the ids of their runs.
    update(all, areLive) {
      const able = all.filter((run) => run.loss !== null);
      runs = able.slice(0, COLORS);
      root.hidden = !runs.length;
      const count = able.length > runs.length ? `${runs.length} of ${able.length}` : runs.length;
      setTitle(chart.heading, `Loss of ${count} ${areLive ? "live" : "ended"} ${able.length > 1 ? "runs" : "run"}`);
      const now = runs.map((run) => run.id).join();
      if (now !== shown) chart.reload();
      else if (areLive) chart.refresh();
      part.colors = new Map(areLive ? runs.map((run, index) => [run.id, index]) : []);
      shown = now;
    },
  };
  return part;
}

async function load(runs, { by, from, to, points, signal }) {
  if (!runs.length) return [];
  const wanted = { run: runs.map((run) => run.id), key: LOSSES, by, from, to, points, mean: true };
  const series = await getSeries(wanted, signal);
  const names = labels(runs);
  return runs.flatMap((run, index) => {
    const own = series.filter((item) => item.run === run.id && item.attempt === run.attempt && item.points.length);
    const item = LOSSES.map((key) => own.find((each) => each.key === key)).find(Boolean);
    return item ? [{ label: names[index], index, points: withDetails(item) }] : [];
  });
}
