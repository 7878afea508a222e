"""The whole daemon over a driver that fails: host and training continue, no old value is served, the GPUs come back.

The effect of each failure on the worker and the handle is tested in tests/nvml/test_survival.py; the tests here check
its effect on a scrape.
"""

from __future__ import annotations

import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import Daemon, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from nvml.fake.library import Scenario

RATES = "nvmlDeviceGetUtilizationRates"
TRAINING = """
import itertools, time, trackside
for step in itertools.count(1):
    trackside.push(step=step, loss=1 / step)
    time.sleep(0.02)
"""
LEAN = (
    "--sample.interval=500ms",
    *(f"--no-collector.{name}" for name in ("process", "cgroup", "filesystem", "disk", "network")),
)
"""Only what the tests read: samples of everything, twice a second, cost a sixth of a CPU."""
STEPS = 'trackside_training_steps_total{rank="0",run="beside"}'
CPU = "trackside_host_cpu_seconds_total"


def of_gpus(daemon: Daemon, family: str, page: dict[str, float] | None = None) -> dict[str, float]:
    """Return the values of a family that only has GPU labels, by GPU, on a page; none by default are those of now.

    A busy machine skips ticks, and then any page may be without them: tests wait for a page that has what they expect.
    """
    start = f'trackside_gpu_{family}{{gpu="'
    series = (daemon.series() if page is None else page).items()
    return {name.removeprefix(start).partition('"')[0]: value for name, value in series if name.startswith(start)}


def children(process: int) -> list[int]:
    """Return the pids of a process's children, zombies included, without the ingest worker and the tests' nursery."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += map(int, (task / "children").read_text().split())
    others = re.compile(rb"ingest\.worker|fork_server")
    return [pid for pid in found if not others.search(Path(f"/proc/{pid}/cmdline").read_bytes())]


def worker(daemon: Daemon) -> int:
    [child] = eventually(lambda: children(daemon.process.pid))
    return child


def is_there(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def everything_is_well(daemon: Daemon) -> bool:
    return of_gpus(daemon, "utilization_ratio") == {"0": 0.98, "1": 0.98}


@pytest.fixture
def watched(scenario: Scenario, start_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon that reads two GPUs."""
    daemon = start_daemon(*LEAN)
    eventually(lambda: everything_is_well(daemon))
    return daemon


@pytest.fixture
def training(watched: Daemon, start_training: Callable[..., Process]) -> Process:
    """One that pushes a step every 20 ms to that daemon, as long as the test lasts."""
    process = start_training(watched, "-c", TRAINING, TRACKSIDE_RUN_NAME="beside")
    eventually(lambda: STEPS in watched.series())
    return process


def test_a_machine_without_a_driver_is_watched_at_once_and_its_gpus_when_there_is_one(
    nvml_library: Path, scenario: Scenario, start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    daemon = start_daemon(*LEAN, environ={"LD_LIBRARY_PATH": str(libraries)})
    success = 'trackside_collector_success{collector="gpu"}'
    none = {"trackside_gpus_visible": 0, success: 0}
    page = eventually(lambda: series if none.items() <= (series := daemon.series()).items() else {})
    assert any(name.startswith(CPU) for name in page)
    assert not any(name.startswith("trackside_gpu_") for name in page)
    shutil.copy(nvml_library, libraries)
    eventually(lambda: everything_is_well(daemon))
    there = {"trackside_gpus_visible": 2, success: 1}
    eventually(lambda: there.items() <= daemon.series().items())


def test_while_a_gpu_hangs_nothing_old_is_served_all_else_continues_and_the_other_returns(
    watched: Daemon, training: Process, scenario: Scenario
) -> None:
    scenario.set(f"1 {RATES} hang")
    eventually(lambda: not of_gpus(watched, "utilization_ratio"))
    scenario.set("0 nvmlDeviceGetTemperature 40")
    steps, seconds = [], []

    def sample() -> dict[str, float]:
        page = watched.series()
        steps.append(page[STEPS])
        seconds.extend(
            [sum(found)] if (found := [value for name, value in page.items() if name.startswith(CPU)]) else []
        )
        temperatures = {value for name, value in page.items() if "gpu_temperature_celsius" in name and "gpu=" in name}
        assert 61 not in temperatures
        assert watched.get("/-/healthy").status_code == 200
        return page

    def is_down() -> bool:
        up = of_gpus(watched, "up", sample())
        assert up in ({}, {"0": 0, "1": 0}), "it is unknown before the deadline"
        return bool(up)

    def is_back() -> bool:
        page = sample()
        shown = of_gpus(watched, "utilization_ratio", page), of_gpus(watched, "up", page)
        return shown == ({"0": 0.98}, {"0": 1, "1": 0})

    eventually(is_down)
    eventually(is_back)
    assert watched.series()['trackside_nvml_worker_restarts_total{reason="timeout"}'] == 1
    assert steps == sorted(steps)
    assert seconds == sorted(seconds)
    assert len(seconds) > len(steps) / 2
    assert steps[-1] > steps[0] + 50
    assert len(set(seconds)) > 10
    assert training.poll() is None


def test_while_a_worker_is_replaced_for_a_lost_gpu_no_other_is_reported_as_down(
    watched: Daemon, scenario: Scenario
) -> None:
    restarts, downs = 'trackside_nvml_worker_restarts_total{reason="gpu_lost"}', []

    def sample() -> dict[str, float]:
        page = watched.series()
        downs.append({gpu for gpu, value in of_gpus(watched, "up", page).items() if not value})
        return page

    scenario.set("1 * status 15", "system nvmlInitWithFlags hang")
    eventually(lambda: sample()[restarts] == 1)

    def is_replaced() -> bool:
        page = sample()
        shown = [of_gpus(watched, family, page) for family in ("utilization_ratio", "up")]
        return shown == [{}, {"1": 0}] and "trackside_gpus_visible" not in page

    eventually(is_replaced)
    scenario.remove("system nvmlInitWithFlags")
    assert {"1"} in downs
    assert all(down <= {"1"} for down in downs)


def test_a_worker_dies_with_its_killed_daemon_although_it_hangs_in_the_driver(
    watched: Daemon, scenario: Scenario
) -> None:
    process = worker(watched)
    scenario.set(f"1 {RATES} hang")
    eventually(lambda: not of_gpus(watched, "utilization_ratio"))
    watched.process.send_signal(signal.SIGKILL)
    eventually(lambda: not is_there(process))


def test_a_second_daemon_leaves_the_gpus_to_the_first_until_that_ends(
    watched: Daemon, start_daemon: Callable[..., Daemon], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("second")
    second = start_daemon(*LEAN, directory=place)
    message = f"process {worker(watched)} of user"
    eventually(
        lambda: any(message in line and "already samples the GPUs of this machine" in line for line in second.log)
    )
    eventually(lambda: everything_is_well(watched))
    assert not of_gpus(second, "utilization_ratio")
    watched.stop()
    eventually(lambda: everything_is_well(second))


def test_after_a_reload_a_driver_is_slow_by_the_new_interval(
    scenario: Scenario, start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    file = tmp_path / "trackside.yml"
    file.write_text("sample: {interval: 3s}\n")
    daemon = start_daemon(f"--config.file={file}", *LEAN[1:])
    eventually(lambda: everything_is_well(daemon))
    file.write_text("sample: {interval: 500ms}\n")
    scenario.set("0 delay 0.01")
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: "than the interval" in daemon.api("status").text)
