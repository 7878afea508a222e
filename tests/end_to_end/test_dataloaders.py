"""PyTorch's data loader below a training: its workers on the page and in the API, and the findings when they die."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, LEAN, Daemon, eventually, lasting_daemon, require, run_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from end_to_end.conftest import Process

require("torch")

TRAINING = str(Path(__file__).parent / "loads.py")
MIB = 1024**2


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for the whole file."""
    with lasting_daemon("--sample.interval=250ms", *LEAN) as one:
        yield one


@pytest.fixture
def small_shm() -> str:
    """The flag of the training for a small /dev/shm."""
    mounting = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    if shutil.which("unshare") is None or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small /dev/shm here")
    return "--small-shm"


def processes(daemon: Daemon, run: str) -> list[dict[str, Any]]:
    """Return the processes of a run, as the API shows them."""
    return [one for one in daemon.api("processes").json()["processes"] if one["run"] == run]


def roles(daemon: Daemon, run: str) -> list[str]:
    """Return the role of the rank's process, then the roles of the others in alphabetical order."""
    first, *others = [one["role"] for one in processes(daemon, run)] or [""]
    return [first, *sorted(others)]


def of_loader(daemon: Daemon, run: str, family: str) -> float | None:
    """Return a sum over a run's workers."""
    return daemon.series().get(f'trackside_dataloader_{family}{{rank="0",run="{run}"}}')


def deaths(daemon: Daemon, run: str) -> list[dict[str, Any]]:
    """Return the history's events of workers that died."""
    (found,) = eventually(lambda: [one for one in daemon.api("runs").json()["runs"] if one["name"] == run])
    events = daemon.api(f"events?run={found['id']}").json()["events"]
    return [one for one in events if one["kind"] == "dataloader_died"]


def await_tick(daemon: Daemon) -> None:
    """Wait for the next sample of the processes."""
    moment = 'trackside_collector_last_success_timestamp_seconds{collector="process"}'
    last = daemon.series()[moment]
    eventually(lambda: daemon.series().get(moment, last) > last)


def send_line(training: Process, line: str) -> None:
    assert training.stdin is not None
    training.stdin.write(f"{line}\n")
    training.stdin.flush()


@pytest.mark.parametrize(
    ("method", "helpers"), [("fork", 0), pytest.param("spawn", 2, marks=pytest.mark.only_soak), ("forkserver", 3)]
)
def test_the_workers_of_a_loader_are_recognized_whichever_way_they_are_started(
    daemon: Daemon, start_training: Callable[..., Process], method: str, helpers: int
) -> None:
    """The helpers are the resource tracker, the server of `forkserver`, and that of the tests, which forks them."""
    training = start_training(daemon, TRAINING, method, nursery=helpers > 0, TRACKSIDE_RUN_NAME=method)
    expected = ["rank", *["dataloader"] * 4, *["other"] * helpers]
    eventually(lambda: roles(daemon, method) == expected)
    rank, *below = processes(daemon, method)
    assert (rank["pid"], rank["parent"], rank["rank"]) == (training.pid, os.getpid(), 0)
    assert {one["comm"] for one in below if one["role"] == "dataloader"} == {"pt_data_worker"}
    assert {one["parent"] for one in below} <= {one["pid"] for one in (rank, *below)}
    assert all(one["resident_bytes"] > 0 and one["threads"] >= 1 for one in (rank, *below))
    assert all(one["started"] >= rank["started"] for one in below)
    eventually(lambda: of_loader(daemon, method, "workers") == 4)
    assert (of_loader(daemon, method, "resident_memory_bytes") or 0) > 4 * MIB
    assert (of_loader(daemon, method, "anonymous_memory_bytes") or 0) > 4 * MIB
    page = daemon.series()
    assert page[f'trackside_process_children{{pid="{training.pid}"}}'] == helpers
    assert page[f'trackside_process_resident_memory_bytes{{pid="{training.pid}"}}'] > 10 * MIB
    send_line(training, "close")
    eventually(lambda: of_loader(daemon, method, "workers") == 0)
    assert (of_loader(daemon, method, "cpu_seconds_total") or 0) > 0, "what they had is kept"
    training.communicate("", timeout=DEADLINE)
    eventually(lambda: processes(daemon, method) == [])
    assert deaths(daemon, method) == []
    assert not [line for line in daemon.log if f"run {method} rank 0" in line and "data loader" in line]


def test_a_worker_that_finds_shared_memory_full_is_seen_for_what_it_is(
    daemon: Daemon, start_training: Callable[..., Process], small_shm: str
) -> None:
    training = start_training(daemon, TRAINING, "fork", small_shm, TRACKSIDE_RUN_NAME="full")
    eventually(lambda: of_loader(daemon, "full", "workers") == 4)
    send_line(training, "crowd")
    assert training.stdout is not None
    assert training.stdout.readline() == "crowded\n"
    used = 'trackside_training_shm_used_bytes{rank="0",run="full"}'
    eventually(lambda: daemon.series().get(used, 0) > 14 * MIB)
    for _ in range(5):
        await_tick(daemon)
    send_line(training, "fill")
    training.communicate("", timeout=DEADLINE)
    assert training.returncode != 0, "as it says itself in one way or another"
    first = eventually(lambda: deaths(daemon, "full"))[0]["fields"]
    series = 'trackside_dataloader_deaths_total{cause="SIGBUS",rank="0",run="full"}'
    eventually(lambda: daemon.series().get(series) == len(deaths(daemon, "full")))
    for one in deaths(daemon, "full"):
        assert (one["rank"], one["fields"]["signal"]) == (0, "SIGBUS")
        assert re.fullmatch(r"killed by SIGBUS: /dev/shm is full \(1[56](\.\d)? of 16 MiB\)", one["fields"]["cause"])
    assert [line for line in daemon.log if "run full rank 0: data loader worker" in line and first["cause"] in line]
    eventually(lambda: "DataLoaderDied" in {one["alert"] for one in daemon.api("alerts").json()["alerts"]})
    shown = run_here("show", "full", f"--storage.path={daemon.history}", environ={"COLUMNS": "200"})
    assert re.search(rf" 0 +- +dataloader_died\s+pid={first['pid']} signal=SIGBUS cause=", shown.stdout)


def test_a_worker_that_is_killed_is_reported_too(daemon: Daemon, start_training: Callable[..., Process]) -> None:
    training = start_training(daemon, TRAINING, "fork", TRACKSIDE_RUN_NAME="kill")
    eventually(lambda: of_loader(daemon, "kill", "workers") == 4)
    send_line(training, "kill")
    training.communicate("", timeout=DEADLINE)
    (fields,) = eventually(lambda: [one["fields"] for one in deaths(daemon, "kill")])
    assert {"signal": "SIGKILL", "cause": "killed by SIGKILL"}.items() <= fields.items()
    assert daemon.series()['trackside_dataloader_deaths_total{cause="SIGKILL",rank="0",run="kill"}'] == 1
