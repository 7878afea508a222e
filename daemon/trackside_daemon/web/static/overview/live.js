// The runs that live: one line each, which becomes a card where the window is narrow.

import { h, rows, say, sparkline } from "/static/dom.js";
import { badge, bar, renew } from "/static/parts.js";
import { ago, number, percent, plural, real, runAddress, short, span } from "/static/words.js";

const SILENT_STATES = new Set(["stalled", "lost"]);

export function live(choice) {
  const list = h("ul.runs");
  return {
    root: list,
    told: (runs, now) => rows(list, runs.map((run) => ({ run, now })), ({ run }) => run.id, ({ run }) => line(run, choice)),
  };
}

function line(first, choice) {
  const state = badge();
  const about = h("span.quiet");
  const alerts = h("a.alerts", { href: `/alerts?run=${encodeURIComponent(first.id)}` });
  const step = h("span.value");
  const ratio = h("span.quiet");
  const left = h("div.quiet");
  const progress = bar();
  const loss = h("span.value");
  const curve = h("div");
  const speed = h("div.value");
  const pace = h("div.quiet");
  const row = h(
    "li.run.card",
    {},
    choice.box(first),
    h("div.who", {}, h("h3", {}, h("a.clamp", { href: runAddress(first.id), title: first.name }, first.name)), h("div.under", {}, state, about, alerts)),
    h("div.progress", {}, h("div", {}, step, " ", ratio), progress, left),
    h("div.loss", {}, h("div", {}, loss), curve),
    h("div.speed", {}, speed, pace),
  );
  row.told = ({ run, now }) => {
    state.told(run.state);
    say(about, [ranks(run), attempt(run), silent(run, now)].filter(Boolean).join(" · "));
    warn(alerts, run.alerts);
    say(step, run.step === undefined ? "" : `Step ${run.step}${run.total_steps ? ` / ${run.total_steps}` : ""}`);
    say(ratio, percent(run.progress_ratio, 1));
    say(left, run.remaining_seconds > 0 ? `${span(run.remaining_seconds)} left` : "");
    progress.told(run.progress_ratio);
    say(loss, run.loss === undefined ? "" : `Loss ${number(run.loss)}`);
    loss.classList.toggle("nonfinite", typeof run.loss === "string");
    draw(curve, run);
    say(speed, rate(run));
    say(pace, run.step_seconds === undefined ? "" : `${span(run.step_seconds)} a step`);
  };
  return row;
}

const ranks = (run) => (run.world_size > 1 ? plural(run.world_size, "rank") : "");
const attempt = (run) => (run.attempt ? `attempt ${run.attempt}` : "");
const silent = (run, now) => (SILENT_STATES.has(run.state) ? `last step ${ago(run.last_step_time, now)}` : "");

function rate(run) {
  if (run.tokens_per_second !== undefined) return `${short(run.tokens_per_second)} tokens/s`;
  return run.samples_per_second === undefined ? "" : `${short(run.samples_per_second)} samples/s`;
}

function warn(element, counts) {
  const some = ["critical", "warning"].filter((severity) => counts[severity]);
  element.hidden = !some.length;
  renew(element, some.map((one) => one + counts[one]).join(), () => some.map((one) => badge(one, `${counts[one]} ${one}`)));
}

function draw(element, run) {
  const values = run.sparkline.map(real);
  const finite = values.filter(Number.isFinite);
  renew(element, JSON.stringify(run.sparkline), () => {
    if (finite.length < 2) return [];
    return sparkline(values, `Loss so far, from ${number(values[0])} to ${number(values.at(-1))}, lowest ${number(Math.min(...finite))}`);
  });
}
