"""Trainings that something on a real machine slows down: the first cause in the alert is the planted one.

tests/alerts/test_slow_down_evidence.py has the same causes, and ten healthy runs, on a simulated machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dead_filesystem import CannotMount
from processes import eventually, terminated
from slow_filesystem import SlowFilesystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from end_to_end.conftest import Process
    from nvml.fake.library import Scenario
    from processes import Daemon

SCRIPT = str(Path(__file__).parent / "slowed_training.py")
PACE = 0.03  # seconds of a step
HEALTHY = 10  # runs
USUAL = 1_400  # steps before the fault
HOG = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
OFTEN = ("--sample.interval=500ms", "--storage.interval=500ms")
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"

THROTTLED = """
0 nvmlDeviceGetClockInfo:0 1005
0 nvmlDeviceGetClockInfo:1 1005
0 nvmlDeviceGetCurrentClocksEventReasons 72
"""


@pytest.fixture(autouse=True)
def _only_in_soak(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("takes a minute and an idle machine: under --soak")


class Trainings:
    """The trainings of a test, and their daemon."""

    def __init__(self, daemon: Daemon, start: Callable[..., Process], directory: Path) -> None:
        self.daemon = daemon
        self._start = start
        self._directory = directory

    def begin(self, name: str, *arguments: str, **environ: str) -> int:
        """Begin a training; return its pid."""
        self.pace(name, PACE)
        same = {"TRACKSIDE_RUN_ID": name, "TRACKSIDE_RUN_NAME": name, **environ}
        return self._start(self.daemon, SCRIPT, str(self._directory / name), *arguments, **same).pid

    def pace(self, name: str, seconds: float) -> None:
        """Set how long a training sleeps in each step."""
        new = self._directory / f"{name}.new"
        new.write_text(str(seconds))
        new.replace(self._directory / name)

    def wait_for(self, name: str, steps: int = USUAL) -> None:
        """Wait until a training has made so many steps."""
        series = f'trackside_training_step{{rank="0",run="{name}"}}'
        eventually(lambda: self.daemon.series().get(series, 0) >= steps, pause=0.5)

    def explained(self, name: str) -> dict[str, Any]:
        """Return the alert about slow steps of a training, once it has a conclusion."""

        def find_alerts() -> list[dict[str, Any]]:
            found = self.daemon.api(f"alerts?run={name}").json()["alerts"]
            return [one for one in found if one["alert"] == "ThroughputRegression" and "conclusion" in one["evidence"]]

        (alert,) = eventually(find_alerts, pause=0.2)
        return alert


@pytest.fixture
def trainings(
    scenario: Scenario, start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], place: Path
) -> Trainings:
    del scenario  # which sets the environment of the daemon
    return Trainings(start_daemon(*OFTEN), start_training, place)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowFilesystem]:
    try:
        made = SlowFilesystem(tmp_path)
    except CannotMount as error:
        pytest.skip(str(error))
    yield made
    made.close()


@contextmanager
def hogs(cpu: int, count: int) -> Iterator[None]:
    """Keep one CPU busy by processes."""
    with ExitStack() as ends:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", HOG, str(cpu)])
            ends.callback(terminated, process)
        yield


def check(alert: dict[str, Any], cause: str) -> None:
    """Check that a cause is the first one in an alert."""
    causes = alert["evidence"]["causes"]
    assert [one["cause"] for one in causes[:1]] == [cause], alert["description"]
    assert alert["description"].startswith(f"Likely cause: {causes[0]['text']}")


def test_gpus_that_are_throttled_or_shared_and_ten_healthy_runs(trainings: Trainings, scenario: Scenario) -> None:
    pids = [trainings.begin(name, "sleep") for name in ("throttled", "shared")]
    healthy = [f"healthy{number}" for number in range(HEALTHY)]
    for name in healthy:
        trainings.begin(name, "sleep")
    scenario.set(*(f"{gpu} {PROCESSES} {pid} 70000000000" for gpu, pid in enumerate(pids)))
    scenario.remove("* nvmlDeviceGetProcessUtilization")
    trainings.wait_for("shared")
    scenario.set(THROTTLED, f"1 {PROCESSES} {pids[1]} 70000000000 {os.getpid()} 9000000000")
    for name in ("throttled", "shared", *healthy):
        trainings.pace(name, 2 * PACE)
    check(trainings.explained("throttled"), "gpu_clock")
    check(trainings.explained("shared"), "gpu_neighbour")
    for name in healthy:
        alert = trainings.explained(name)
        assert alert["evidence"]["causes"] == [], alert["description"]
        assert alert["description"].startswith("No cause was found; ")


def test_a_process_that_uses_the_same_cpu(trainings: Trainings) -> None:
    cpu = max(os.sched_getaffinity(0))
    trainings.begin("net", "compute", CPU=str(cpu))
    trainings.pace("net", 0.01)
    trainings.wait_for("net")
    with hogs(cpu, 3):
        alert = trainings.explained("net")
    check(alert, "cpu_neighbour")
    assert "python" in alert["evidence"]["causes"][0]["text"]


@pytest.mark.parametrize(("kind", "cause"), [("read", "io_pressure"), ("load", "slow_storage")])
def test_storage_that_has_become_slow(trainings: Trainings, slow: SlowFilesystem, kind: str, cause: str) -> None:
    trainings.begin("net", kind, str(slow.file))
    trainings.wait_for("net")
    slow.set_delay(0.1)
    check(trainings.explained("net"), cause)
