// What is now: runs, what fires, GPUs and the host; below it the runs that have ended.

import { h } from "/static/dom.js";
import { gpuTiles } from "/static/machine/gpus.js";
import { hostLine } from "/static/machine/host.js";
import { choosing } from "/static/overview/chosen.js";
import { ended } from "/static/overview/ended.js";
import { firing } from "/static/overview/firing.js";
import { live } from "/static/overview/live.js";
import { ENDED } from "/static/parts.js";

export const title = "Overview";

const LINES = "import trackside\n…\ntrackside.push(step=step, loss=loss)";

export function show(place) {
  const choice = choosing();
  const host = hostLine();
  const alerts = firing();
  const gpus = gpuTiles();
  const now = live(choice);
  const none = h("p.quiet", { hidden: true }, "No run is live now.");
  const add = h("p", {}, "None yet. Add trackside.push(step=step, loss=loss) to a training:");
  const first = h("section.notice.empty", { hidden: true }, add, h("pre", {}, LINES));

  let alive;
  let any;
  const tell = () => {
    none.hidden = alive !== 0 || any !== true;
    first.hidden = alive !== 0 || any !== false;
  };
  const past = ended(place, choice, (some) => {
    any = some;
    tell();
  });
  const top = h("div.top", {}, h("h1", {}, "Overview"), host.root);
  const parts = [now, alerts, gpus, past, choice].map((one) => one.root);
  const root = h("div.overview", {}, top, h("h2", {}, "Runs"), none, first, parts);
  return {
    root,
    told(overview) {
      const running = overview.runs.filter((run) => !ENDED.has(run.state));
      alive = running.length;
      tell();
      now.told(running, overview.time);
      for (const part of [host, alerts, gpus, past]) part.told(overview);
    },
  };
}
