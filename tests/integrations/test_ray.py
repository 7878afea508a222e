"""Ray Train and Ray Tune on this machine. Ray is large, so that only `make soak` installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, Daemon, clean_environ, eventually, require

if TYPE_CHECKING:
    from collections.abc import Iterator

require("ray")
require("torch")


@pytest.fixture
def daemon(place: Path) -> Iterator[Daemon]:
    one = Daemon(place)
    yield one
    one.stop()


def test_runs_and_trials_have_rays_names_and_finish_without_an_alert(daemon: Daemon, tmp_path: Path) -> None:
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint, "RAY_USAGE_STATS_ENABLED": "0"})
    script = Path(__file__).with_name("ray_jobs.py")
    subprocess.run([sys.executable, str(script), str(tmp_path)], env=environ, timeout=10 * DEADLINE, check=True)
    eventually(lambda: [run["ended"] is not None for run in daemon.api("runs").json()["runs"]] == [True] * 3)
    runs = daemon.api("runs").json()["runs"]
    assert [(run["state"], run["cause"]) for run in runs] == [("finished", "")] * 3
    trials = sorted(run["name"] for run in runs if run["name"] != "linear")
    assert [name.rpartition("_")[2] for name in trials] == ["00000", "00001"]
    assert all(name.startswith("trial_") for name in trials)
    (linear,) = [run for run in runs if run["name"] == "linear"]
    assert (linear["world_size"], linear["attempt"], linear["step"]) == (2, 0, 19)
    alerts = daemon.api("alerts").json()["alerts"]
    assert [alert for alert in alerts if alert["severity"] == "critical"] == []
