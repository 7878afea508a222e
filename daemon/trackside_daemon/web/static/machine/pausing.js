// Whether the GPUs are read, and the button that lets go of them for a while, so that they can be reset or taken away.

import { post } from "/static/api.js";
import { confirmed } from "/static/confirm.js";
import { h, say } from "/static/dom.js";
import { when } from "/static/words.js";

const SECONDS = 600;
const ASKED = "For ten minutes the daemon closes the driver's device files and measures no GPU; its alerts about GPUs rest. Trainings go on.";

export function pausing(changed, signal) {
  const words = h("p.quiet", { role: "status" });
  const holders = h("p.warn", { role: "alert", hidden: true });
  const pause = h("button", { type: "button", onclick: () => act(stop) }, "Pause reading");
  const resume = h("button.strong", { type: "button", onclick: () => act(goOn) }, "Resume reading");
  const root = h("div.tools.pausing", {}, words, pause, resume, holders);

  async function act(call) {
    pause.disabled = resume.disabled = true;
    try {
      await call();
    } catch (problem) {
      warn(problem.message);
    }
    pause.disabled = resume.disabled = false;
  }

  async function stop() {
    if (!(await confirmed("Pause reading the GPUs?", ASKED, "Pause", signal))) return;
    const answer = await post("gpu/pause", { for: SECONDS });
    const others = answer.holders.map((one) => `${one.name} (${one.pid})`).join(", ");
    warn([!answer.released && "The driver hangs, and holds on to the daemon's own worker.", others && `Still held by ${others}.`].filter(Boolean).join(" "));
    await changed();
  }

  async function goOn() {
    await post("gpu/resume", {});
    warn("");
    await changed();
  }

  function warn(text) {
    say(holders, text);
    holders.hidden = !text;
  }

  return {
    root,
    told({ nvml, gpus }) {
      const paused = nvml?.paused_until ?? null;
      pause.hidden = nvml === null || nvml.absent || paused !== null;
      resume.hidden = paused === null;
      say(words, state(nvml, gpus, paused));
    },
  };
}

function state(nvml, gpus, paused) {
  if (nvml === null) return "GPUs are not read: the daemon was started with --no-collector.gpu.";
  if (paused !== null) return paused === "inf" ? "Paused, with no end." : `Paused until ${when(paused)}.`;
  if (nvml.absent) return "No GPU, or no driver of NVIDIA's, is on this machine.";
  if (nvml.error) return nvml.error;
  const driver = [nvml.driver_version && `driver ${nvml.driver_version}`, nvml.cuda_version && `CUDA ${nvml.cuda_version}`];
  const seen = nvml.expected > gpus.length ? `${gpus.length} of ${nvml.expected} are there` : `${gpus.length} there`;
  return [seen, ...driver].filter(Boolean).join(" · ");
}
