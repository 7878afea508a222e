// The list: what fires now, live; the silences that last; what has fired.

import { ask } from "/static/api.js";
import { alone } from "/static/alerts/alone.js";
import { firing } from "/static/alerts/firing.js";
import { history } from "/static/alerts/history.js";
import { silence } from "/static/alerts/silence.js";
import { silences } from "/static/alerts/silences.js";
import { trial } from "/static/alerts/trial.js";
import { h, say } from "/static/dom.js";

const EVERY = 10;

export function list(place) {
  const said = h("p.said", { role: "status", tabindex: -1 });
  const done = async (text) => {
    say(said, text);
    said.focus();
    await look();
  };
  const fires = firing(async (alert) => {
    const whole = await ask(`alerts/${alert.id}`).catch((problem) => say(said, problem.message));
    if (whole) silence({ alert: whole.alert, ...whole.labels }, done, place.signal);
  });
  const silent = silences(done);
  const kept = history(place);
  let newest = { alerts: [] };
  let known;
  let ticks = 0;
  let ends = new Map();

  // What the overview does not tell: when silences end, and what was.
  const look = alone(async () => {
    const quiet = newest.alerts.some((one) => one.silenced);
    const asked = ["silences", ...(quiet ? ["alerts?firing=true&evidence=false"] : [])].map((path) => ask(path, { signal: place.signal }));
    try {
      const [, { silences: lasting }, fired] = await Promise.all([kept.load(), ...asked]);
      silent.told(lasting);
      ends = new Map(fired?.alerts.map((one) => [one.id, one.silenced_until]));
      fires.told(newest.alerts, ends, newest.time);
    } catch {
      // The frame says that the daemon does not answer.
    }
  });

  const root = h(
    "div.alerting",
    {},
    h("div.tools.titled", {}, h("h1", {}, "Alerts"), h("span.grow"),
      h("button", { type: "button", onclick: () => silence({ alert: "*" }, done, place.signal) }, "Silence…"),
      h("button", { type: "button", onclick: () => trial(place.signal) }, "Send a test alert…")),
    said,
    h("h2", {}, "Firing"),
    fires.root,
    h("h2", {}, "Silences"),
    silent.root,
    h("h2", {}, "History"),
    kept.root,
  );
  look();
  const told = (overview) => {
    newest = overview;
    fires.told(overview.alerts, ends, overview.time);
    const now = JSON.stringify(overview.alerts.map((one) => [one.id, one.severity, one.silenced, one.summary]));
    ticks += 1;
    if (now !== known || ticks % EVERY === 0) look();
    known = now;
  };
  return { root, told };
}
