"""Ray Train and Ray Tune on this machine. Ray is large, so that only `make soak` installs it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from diffs import change, changed
from processes import DEADLINE, Daemon, alarms, clean_environ, eventually, require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

require("ray")
require("torch")

EPOCHS, STEPS = 10, 400


@pytest.fixture
def daemon(place: Path) -> Iterator[Daemon]:
    one = Daemon(place, "--run.linger=1h")
    yield one
    one.stop()


def ended(daemon: Daemon, script: str, folder: Path, *arguments: str, runs: int = 1) -> None:
    """Run a script with its change, and wait for its runs, which must finish."""
    file = folder / script
    file.write_text(changed(script, change(script)), "utf-8")
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint, "RAY_USAGE_STATS_ENABLED": "0"})
    # Ray's workers import the client from where this process does.
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, str(file), f"--folder={folder}", *arguments]
    subprocess.run(command, env=environ, timeout=10 * DEADLINE, check=True)
    eventually(lambda: [run["ended"] is not None for run in daemon.api("runs").json()["runs"]] == [True] * runs)
    found = daemon.api("runs").json()["runs"]
    assert [(run["state"], run["cause"]) for run in found] == [("finished", "")] * runs


def lines(path: Path) -> list[str]:
    """Return the losses that a process has written."""
    return path.read_text().split()


def test_workers_of_train_are_the_ranks_of_a_run_with_the_name_of_the_experiment(
    daemon: Daemon, tmp_path: Path
) -> None:
    ended(daemon, "ray_linear.py", tmp_path, f"--epochs={EPOCHS}")
    (run,) = daemon.api("runs").json()["runs"]
    assert (run["name"], run["world_size"], run["attempt"], run["step"]) == ("linear", 2, 0, 125 * EPOCHS - 1)
    for rank in range(2):
        losses = daemon.values(run["id"], "loss", rank)
        assert [f"{loss:.9g}" for loss in losses.values()] == lines(tmp_path / f"rank{rank}.txt")
        page, labels = daemon.series(), f'rank="{rank}",run="linear"'
        assert page[f"trackside_training_samples_total{{{labels}}}"] == 500 * EPOCHS
        assert page[f'trackside_training_phase_seconds_total{{phase="eval",{labels}}}'] > 0
    assert alarms(daemon) == {}  # the data are sorted: each epoch begins with a high loss, and the loss falls by epochs


def test_each_trial_of_tune_is_a_run_with_its_name(daemon: Daemon, tmp_path: Path) -> None:
    ended(daemon, "ray_tune.py", tmp_path, f"--steps={STEPS}", runs=4)
    runs = daemon.api("runs").json()["runs"]
    assert sorted(run["name"].rpartition("_")[2] for run in runs) == ["00000", "00001", "00002", "00003"]
    assert all(run["name"].startswith("objective_") for run in runs)
    for run in runs:
        (attempt,) = daemon.api(f"runs/{run['id']}").json()["attempt_list"]
        losses = daemon.values(run["id"], "loss")
        assert [f"{loss:.9g}" for loss in losses.values()] == lines(tmp_path / f"lr{attempt['config']['lr']}.txt")
        assert list(losses) == list(range(STEPS))
    assert alarms(daemon) == {}
