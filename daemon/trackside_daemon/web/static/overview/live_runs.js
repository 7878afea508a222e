// The live runs, one line each; in a narrow window each is a card.

import { h, syncRows, setText, sparkline, badge, bar, rerender } from "/static/dom.js";
import { ago, number, percent, plural, real, runAddress, short, span } from "/static/format.js";

const SILENT_STATES = new Set(["stalled", "lost"]);

export function liveRuns(selection) {
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

export function ownerOf(runs) {
  const several = new Set(runs.map((run) => run.user)).size > 1;
  return (run) => (several && run.user) || "";
}
