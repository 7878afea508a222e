"""An unchanged training under ``trackside run --auto``: its stages, the sample that spoils it, and a profile of its waits."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from processes import clean_environ, command

from bench.gpu_report import auto_train
from bench.gpu_report.evidence import Evidence
from bench.gpu_report.result import Figure, Result
from bench.gpu_report.training import TrainingRun, ask

SECONDS = 30.0
STAGES = ("forward", "backward", "optimizer")
STEPS = 10
RUN = "auto_train"


def measure(result: Result, *, rehearse: bool) -> None:
    """Train, and judge what the history and a capture have; in a rehearsal, a small model on the CPU."""
    options = ["--seconds=20", "--device=cpu"] if rehearse else [f"--seconds={SECONDS:g}", "--device=cuda"]
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        place = Path(directory)
        (place / "history").mkdir()
        run = TrainingRun(place, ["--auto"], [str(auto_train.__file__), *options], Evidence())
        captured = _captured(place, run)
        status = run.wait()
        result.figures.append(Figure("trackside run --auto: exit status", str(status), "0", met=status == 0))
        _judge_history(result, place)
        _judge_capture(result, captured, judged=not rehearse)
    if not rehearse:
        on_gpu = any("trackside_training_device_phase_seconds_total{" in page for page in run.pages)
        result.figures.append(Figure("stages by the GPU's own clock", str(on_gpu), "True", met=on_gpu))


def _captured(place: Path, run: TrainingRun) -> dict[str, Any]:
    """Return the answer of a capture while the training runs, once the daemon has its first step."""
    while not any("trackside_training_loss{" in page for page in run.pages):
        if not run.observe():
            return {"error": "the command ended before its first step"}
    url = f"{run.url}#token={(place / 'push.token').read_text().strip()}"
    asked = command("capture", RUN, f"--steps={STEPS}", "--json", f"--url={url}")
    done = subprocess.run(asked, env=clean_environ(), capture_output=True, text=True, check=False, timeout=60)
    return {"error": done.stderr} if done.returncode else dict(json.loads(done.stdout))


def _judge_history(result: Result, place: Path) -> None:
    shown = ask(place, "show", RUN)
    phases = {name for attempt in shown["attempt_list"] for rank in attempt["phases"].values() for name in rank}
    missing = [stage for stage in STAGES if stage not in phases]
    result.figures.append(Figure("stages that --auto does not find", ", ".join(missing) or "0", "0", not missing))
    spoilt = [one for one in ask(place, "alerts", "--limit=0")["alerts"] if one["alert"] == "NonFinite"]
    result.figures.append(Figure("alerts NonFinite", str(len(spoilt)), ">= 1", bool(spoilt)))
    batches = ask(place, "batch", RUN)["batches"]
    named = [one["step"] for one in batches if auto_train.SPOILT in one["samples"]]
    result.figures.append(Figure("batches that name the spoilt sample", str(len(named)), ">= 1", bool(named)))
    result.notes.append(f"Spoilt in the batch of step {auto_train.SPOILT_STEP}, named at {named}.")


def _judge_capture(result: Result, captured: dict[str, Any], *, judged: bool) -> None:
    print(json.dumps(captured)[:4000])
    summary = ((captured.get("summary") or {}).get("ranks") or {}).get("0")
    result.figures.append(Figure("profile of the training", str(captured.get("state")), "summarised", bool(summary)))
    if summary:
        device, waits = summary["device"], summary.get("host", {}).get("syncs", 0)
        result.figures.append(Figure("device of the profile", device, "gpu", device == "gpu" if judged else None))
        result.figures.append(Figure("waits of a step with item()", str(waits), ">= 1", waits >= 1 if judged else None))
