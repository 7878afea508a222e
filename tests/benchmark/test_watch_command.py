"""`trackside benchmark --watch` beside a training whose second checkpoint is worse than its first: only under --soak.

The audit waits for seconds until it reads a checkpoint, and each measurement starts processes.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest
from processes import ROOT, Daemon, clean_environ, command, eventually, start

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

TRAINING = """
import os, sys
import trackside

run = trackside.init("stored", id=sys.argv[1])
for step in (10, 20):
    sys.stdin.readline()
    run.push(loss=1 / step, step=step)
    path = os.path.abspath(f"step-{step}.pt")
    save(step, path)
    run.event("checkpoint", path=path)
sys.stdin.readline()
"""
SIZES = """
import zipfile

def save(step, path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", str(step))
        archive.writestr("archive/data/0", os.urandom(4000 * step))
"""
WEIGHTS = """
import torch
from torch_targets import embedded

def save(step, path):
    model = embedded()
    with torch.no_grad():
        if step == 20:  # a weight that counts for nothing, but takes the range of the eight bits
            model[0].weight[:, 0] = 0.0
            model[1].weight[0, 0] = 1000.0
    torch.save(model.state_dict(), path)
"""


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if not request.config.getoption("--soak"):
        pytest.skip("the watch of checkpoints takes half a minute: only under --soak")
    one = Daemon(tmp_path_factory.mktemp("watch"))
    yield one
    one.stop()


@pytest.fixture
def begin(daemon: Daemon, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts a command of this Python beside the daemon, with the targets to import."""
    ours = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_SPOOL": str(tmp_path / "spool")}
    ours |= {"PYTHONPATH": str(ROOT / "tests" / "benchmark"), "NOTES": str(tmp_path / "notes")}
    with ExitStack() as ends:

        def begin(arguments: list[str]) -> subprocess.Popen[str]:
            pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), PIPE)
            process = start(arguments, env=clean_environ(ours), cwd=tmp_path, text=True, **pipes)
            ends.callback(process.communicate)
            ends.callback(process.kill)
            return process

        yield begin


def write(process: subprocess.Popen[str]) -> None:
    """Let the training save its next checkpoint."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def watched(
    daemon: Daemon, begin: Callable[..., subprocess.Popen[str]], name: str, script: str, *arguments: str
) -> tuple[list[str], dict[str, Any]]:
    """Watch a training, and return the lines about both checkpoints and the alert."""
    training = begin([sys.executable, "-c", script + TRAINING, name])
    eventually(lambda: daemon.api(f"runs/{name}").is_success)
    watch = begin(command("benchmark", *arguments, f"--watch={name}", f"--name={name}-benchmark", "--seconds=0.3"))
    found = []
    assert watch.stdout is not None
    for _ in range(2):
        write(training)
        found.append(watch.stdout.readline())
    [alert] = eventually(lambda: daemon.api(f"alerts?run={name}-benchmark").json()["alerts"])
    os.kill(watch.pid, signal.SIGINT)
    _, complaints = watch.communicate(timeout=60)
    assert (watch.returncode, complaints) == (130, "")
    return found, alert


def test_each_checkpoint_is_measured_by_a_polite_process_and_a_slower_one_raises_the_alert(
    daemon: Daemon, begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    (first, second), alert = watched(daemon, begin, "sized", SIZES, "targets:stored")
    assert first == f"step 10: as before ({tmp_path}/step-10.pt)\n"
    assert second.startswith("step 20: 1.")
    assert " times slower than the first checkpoint (" in second
    assert (alert["alert"], alert["severity"]) == ("ModelRegression", "warning")
    assert alert["summary"].startswith("checkpoint of step 20: 1.")
    assert f"{tmp_path}/step-20.pt" in alert["description"]
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert {int(nice) for _, nice, _ in notes} == {10}
    # One process has the checkpoint alone, one measures it: the second together with the first one.
    saved: dict[str, set[str]] = {}
    for pid, _, path in notes:
        saved.setdefault(pid, set()).add(path.rpartition("/")[2])
    assert list(saved.values()) == [{"step-10.pt"}] * 2 + [{"step-20.pt"}, {"step-10.pt"}, {"step-20.pt", "step-10.pt"}]
    series = daemon.api("series?run=sized-benchmark&key=model/original/latency_p50_seconds&points=0").json()["series"]
    assert [step for step, *_ in series[0]["points"]] == [10, 20]


def test_a_variant_that_agrees_less_with_a_later_checkpoint_raises_the_alert(
    daemon: Daemon, begin: Callable[..., subprocess.Popen[str]]
) -> None:
    variants = ("torch_targets:embedded", "--variant=fp32", "--variant=int8-dynamic")
    (first, second), alert = watched(daemon, begin, "weighted", WEIGHTS, *variants)
    assert ": as before (" in first
    assert "int8-dynamic disagrees more: top1 0" in second
    assert alert["summary"].startswith("checkpoint of step 20: ")
