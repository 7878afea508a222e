// The state of GPU readings, and buttons that pause and resume them, so that GPUs can be reset or removed.

import { post } from "/static/api.js";
import { confirmDialog } from "/static/confirm.js";
import { h, setText } from "/static/dom.js";
import { plural, when } from "/static/format.js";

const PAUSE_SECONDS = 600;
const EXPLANATION = "For ten minutes, the daemon closes the driver's device files, reads no GPU and raises no GPU " +
  "alerts. Training continues.";

export function gpuPause(onChange, signal) {
  const stateText = h("p.quiet", { role: "status" });
  const holders = h("p.warn", { role: "alert", hidden: true });
  const pause = h("button", { onclick: () => runAction(pauseReading) }, "Pause reading");
  const resume = h("button.strong", { onclick: () => runAction(resumeReading) }, "Resume reading");
  const root = h("div.tools.pausing", {}, stateText, pause, resume, holders);

  async function runAction(call) {
    pause.disabled = resume.disabled = true;
    try {
      await call();
    } catch (problem) {
      showWarning(problem.message);
    }
    pause.disabled = resume.disabled = false;
  }

  async function pauseReading() {
    if (!(await confirmDialog("Pause reading the GPUs?", EXPLANATION, "Pause", signal))) return;
    const answer = await post("gpu/pause", { for: PAUSE_SECONDS });
    const others = answer.holders.map((process) => `${process.name} (${process.pid})`).join(", ");
    showWarning([!answer.released && "The driver hangs and still holds the daemon's own worker.",
      others && `Still in use by ${others}.`].filter(Boolean).join(" "));
    await onChange();
  }

  async function resumeReading() {
    await post("gpu/resume", {});
    showWarning("");
    await onChange();
  }

  function showWarning(text) {
    setText(holders, text);
    holders.hidden = !text;
  }

  return {
    root,
    update({ nvml, gpus }) {
      const paused = nvml?.paused_until ?? null;
      pause.hidden = nvml === null || nvml.absent || paused !== null;
      resume.hidden = paused === null;
      setText(stateText, describe(nvml, gpus, paused));
    },
  };
}

function describe(nvml, gpus, paused) {
  if (nvml === null) return "GPU readings are off: the daemon was started with --no-collector.gpu.";
  if (paused !== null) return paused === "inf" ? "Paused until you resume." : `Paused until ${when(paused)}.`;
  if (nvml.absent) return "This machine has no GPU or no NVIDIA driver.";
  if (nvml.error) return nvml.error;
  const driver = [nvml.driver_version && `driver ${nvml.driver_version}`,
    nvml.cuda_version && `CUDA ${nvml.cuda_version}`];
  const countText = nvml.expected > gpus.length
    ? `${gpus.length} of ${nvml.expected} GPUs present` : plural(gpus.length, "GPU");
  return [countText, ...driver].filter(Boolean).join(" · ");
}
