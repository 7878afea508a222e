"""A real training through ``trackside run`` with everything on, and the alerts of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from processes import clean_environ, command

from bench.gpu_report import nvidia_smi, train
from bench.gpu_report.evidence import COLUMNS, Evidence, deserved
from bench.gpu_report.result import Figure, Result, Table

SECONDS = 70.0
CONFIG = "collector: {gpu: {extra: [all]}}\n"
EVERY = 4.0
"""Seconds between two observations of the machine during the training."""

SERIES = ("trackside_gpu_rank_info{", "trackside_training_device_phase_seconds_total{")
"""Series that only a training on a real GPU has."""


def measure(result: Result, *, rehearse: bool) -> None:
    """Train, and judge every alert that fired; in a rehearsal, a small model on the CPU."""
    evidence = Evidence()
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        place = Path(directory)
        (place / "history").mkdir()
        (place / "config.yml").write_text(CONFIG)
        options = ["--seconds=8", "--device=cpu"] if rehearse else [f"--seconds={SECONDS:g}", "--device=cuda"]
        run = TrainingRun(place, [f"--config.file={place}/config.yml"], [str(train.__file__), *options], evidence)
        status = run.wait()
        result.figures.append(Figure("trackside run: exit status", str(status), "0", met=status == 0))
        result.tables.append(Table(["`trackside run` prints"], [[line] for line in run.complaints[-30:]]))
        if status == 0:
            own = json.loads(run.printed.splitlines()[-1])
            evidence.durations, evidence.waits = own["durations"], own["waits"]
            _judge_run(result, place, own)
        if not rehearse:
            missing = [name.rstrip("{") for name in SERIES if not any(name in page for page in run.pages)]
            result.figures.append(
                Figure("series of a GPU training that are missing", ", ".join(missing) or "0", "0", not missing)
            )
        _judge_alerts(result, place, evidence)


class TrainingRun:
    """`trackside run` with a training, and what is seen meanwhile.

    Args:
        place: Directory of the socket and the history.
        flags: Further flags of `trackside run`.
        script: The training, with its arguments.
        evidence: What is seen of the machine.

    Attributes:
        url: Address of the daemon, once it serves.
        printed: The training's standard output, after `wait`.
        complaints: Lines of standard error.
        pages: Some pages of /metrics.
    """

    def __init__(self, place: Path, flags: list[str], script: list[str], evidence: Evidence) -> None:
        flags = [*flags, f"--storage.path={place}/history"]
        flags += [f"--push.endpoint=ipc://{place}/push.sock", "--web.listen-address=127.0.0.1:0"]
        self.printed = ""
        self.complaints: list[str] = []
        self.pages: list[str] = []
        self._evidence = evidence
        self.url = ""
        self._process = subprocess.Popen(
            [*command("run", *flags), "--", sys.executable, "-W", "ignore", *script],
            env=clean_environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_output, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def wait(self) -> int:
        """Watch the machine until the command ends; return its exit status."""
        while self.observe():
            pass
        for reader in self._readers:
            reader.join(10.0)
        return self._process.wait()

    def observe(self) -> bool:
        """Wait for the end, or observe the machine after `EVERY` seconds; return whether the command still runs."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EVERY)
            return False
        self._evidence.add_host()
        try:
            self._evidence.gpus += nvidia_smi.query(COLUMNS).rows
        except nvidia_smi.NoNvidiaSmiError as error:
            print(error)
        if self.url:
            try:
                with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as page:
                    self.pages.append(page.read().decode())
            except OSError as error:
                print(error)
        return True

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        self.printed = self._process.stdout.read()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.complaints.append(line.rstrip())
            print(line, end="", flush=True)
            if match := re.match(r"trackside: (http://[\d.]+:\d+)", line):
                self.url = match[1]


def _judge_run(result: Result, place: Path, own: dict[str, Any]) -> None:
    (run,) = ask(place, "runs")["runs"]
    steps = len(own["durations"])
    result.figures.append(Figure("state of the run", run["state"], "finished", met=run["state"] == "finished"))
    result.figures.append(
        Figure("last step in the history", str(run["step"]), str(steps - 1), met=run["step"] == steps - 1)
    )
    shown = ask(place, "show", run["id"])
    counts = {metric["key"]: metric["count"] for metric in shown["metrics"]}
    result.figures.append(
        Figure("losses in the history", str(counts.get("loss", 0)), str(steps), met=counts.get("loss") == steps)
    )
    ordered = sorted(own["durations"])
    losses = own["losses"]
    result.notes.append(
        f"{steps} steps, median {ordered[len(ordered) // 2] * 1e3:.1f} ms; evaluation loss from {losses[0]:.3f} to {losses[-1]:.3f}."
    )


def _judge_alerts(result: Result, place: Path, evidence: Evidence) -> None:
    alerts = ask(place, "alerts", "--limit=0")["alerts"]
    rows = []
    undeserved = 0
    for alert in alerts:
        fair = deserved(alert["alert"], evidence)
        undeserved += not fair
        rows.append([alert["alert"], alert["severity"], alert["summary"], "yes" if fair else "**NO**"])
    result.figures.append(
        Figure("alerts that nothing but trackside sees a reason for", str(undeserved), "0", met=not undeserved)
    )
    result.tables.append(Table(["alert", "severity", "summary", "deserved"], rows))
    pressure = ", ".join(f"{name} {share:g} %" for name, share in sorted(evidence.pressure.items()))
    hottest = max(evidence.of_gpus("temperature.gpu"), default=0.0)
    result.notes.append(f"Meanwhile at most: pressure {pressure}; {hottest:g} degrees by nvidia-smi.")


def ask(place: Path, *arguments: str) -> Any:
    """Return the JSON of a command about the history; a history that is being closed is asked again."""
    options = command(*arguments, "--json", f"--storage.path={place}/history")
    for _ in range(3):
        done = subprocess.run(options, env=clean_environ(), capture_output=True, text=True, check=False, timeout=60)
        if not done.returncode:
            break
        time.sleep(1.0)
    done.check_returncode()
    return json.loads(done.stdout)
