"""examples/ddp_torchrun.py by torchrun with gloo ranks: the history matches the output; a restart is one run."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest
from end_to_end.conftest import finish
from processes import DEADLINE, eventually, require, terminated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from end_to_end.conftest import Process
    from processes import Daemon

require("torch")

EXAMPLE = "examples/ddp_torchrun.py"


LONG = 4 * DEADLINE
"""Seconds that many ranks may take, which all import PyTorch at once."""


@pytest.fixture
def torchrun(start_training: Callable[..., Process]) -> Iterator[Callable[..., Process]]:
    """A function that starts ranks of the example by torchrun, with flags for it.

    After the test, a torchrun that still runs is terminated, so that it ends its ranks.
    """
    started: list[Process] = []

    def start(daemon: Daemon, ranks: int, launcher: Sequence[str], *flags: str) -> Process:
        of_torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *launcher)
        environ = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        started.append(start_training(daemon, *of_torchrun, EXAMPLE, "--batch=16", *flags, **environ))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            terminated(process)  # it hands the signal on, and a kill would leave its ranks behind


def series(daemon: Daemon, family: str, *labels: str) -> dict[str, float]:
    """Return the series of a family of the example's run that have some labels more, such as ``rank="0"``."""
    found = {
        name: value for name, value in daemon.series().items() if name.startswith(f"trackside_training_{family}{{")
    }
    return {name: value for name, value in found.items() if all(one in name for one in ('run="ddp_torchrun"', *labels))}


def by_rank(daemon: Daemon, family: str, *labels: str) -> list[float]:
    """Return the values of such series, in the order of the ranks."""
    found = series(daemon, family, *labels).items()
    return [value for _, value in sorted(found, key=lambda one: re.findall(r'rank="(\d+)"', one[0]))]


def events(daemon: Daemon, run: str, kind: str) -> list[dict[str, Any]]:
    """Return the events of a run, oldest first."""
    found = [one for one in daemon.api(f"events?run={run}").json()["events"] if one["kind"] == kind]
    return sorted(found, key=lambda one: one["time"])


def pids(daemon: Daemon, rank: int) -> list[int]:
    """Return the process of a rank, without its children."""
    every = daemon.api("processes").json()["processes"]
    return [one["pid"] for one in every if (one["role"], one["rank"]) == ("rank", rank)]


def test_four_ranks_are_each_stored_as_they_are_printed(
    daemon: Daemon, torchrun: Callable[..., Process], tmp_path: Path
) -> None:
    flags = ("--steps=60", f"--checkpoints={tmp_path}", "--save-every=25", "--nan-at=51")
    printed = finish(torchrun(daemon, 4, (), *flags), LONG)
    eventually(
        lambda: series(daemon, "state", 'state="finished"') and by_rank(daemon, "state", 'state="finished"') == [1]
    )
    assert by_rank(daemon, "rank_state", 'state="finished"') == [1] * 4
    assert by_rank(daemon, "steps_total") == [60] * 4
    assert by_rank(daemon, "samples_total") == [60 * 16] * 4
    assert by_rank(daemon, "nonfinite_total", 'key="loss"') == [10] * 4
    assert by_rank(daemon, "first_batch_wait_seconds_count") == [1] * 4
    assert by_rank(daemon, "data_wait_seconds_count") == [59] * 4
    (run,) = daemon.api("runs").json()["runs"]
    assert run["world_size"] == 4
    paths = [tmp_path / f"step-{step:08}" for step in (25, 50)]
    sizes = [sum(file.stat().st_size for file in path.iterdir()) for path in paths]
    saved = [one["fields"] for one in events(daemon, run["id"], "checkpoint")]
    assert [(one["path"], one["bytes"]) for one in saved] == list(zip(map(str, paths), sizes, strict=True))
    assert by_rank(daemon, "phase_seconds_total", 'phase="checkpoint"')[0] > 0
    kept = [daemon.values(run["id"], key) for key in ("loss", "grad_norm")]
    reported = [tuple(f"{values[50]:.4f}" for values in kept)]
    assert re.findall(r"loss of rank 0 (\S+)  gradient norm (\S+)", printed) == reported
    eventually(lambda: [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == "NonFinite"])


@pytest.mark.usefixtures("only_soak")
def test_what_torchrun_restarts_after_a_rank_was_killed_is_the_same_run(
    daemon: Daemon, torchrun: Callable[..., Process], tmp_path: Path
) -> None:
    flags = ("--steps=50", f"--checkpoints={tmp_path}", "--save-every=20")
    launcher = ("--max-restarts=1", "--monitor-interval=0.1", "tests/end_to_end/killable_script.py")
    training = torchrun(daemon, 2, launcher, *flags)
    run = eventually(lambda: daemon.api("runs").json()["runs"], LONG)[0]["id"]
    eventually(lambda: daemon.api(f"runs/{run}").is_success)  # it is on the page a moment before it is kept
    eventually(lambda: events(daemon, run, "checkpoint"), LONG)
    (killed,) = eventually(lambda: pids(daemon, rank=1))
    os.kill(killed, signal.SIGKILL)
    finish(training, LONG)
    eventually(lambda: by_rank(daemon, "state", 'state="finished"') == [1])
    (found,) = daemon.api("runs").json()["runs"]
    assert (found["id"], found["state"]) == (run, "finished")
    assert series(daemon, "run_info", 'attempt="1"', 'world_size="2"')
    ended = {(one["attempt"], one["rank"]): one["fields"] for one in events(daemon, run, "rank_ended")}
    assert (ended[0, 1]["state"], ended[0, 1]["cause"]) == ("failed", "SIGKILL")
    assert (ended[0, 0]["state"], ended[0, 0]["cause"]) == ("stopped", "SIGTERM")  # torchrun's
    assert [ended[1, rank]["state"] for rank in range(2)] == ["finished"] * 2
    assert [(one["attempt"], one["fields"]["step"]) for one in events(daemon, run, "resume")] == [(1, 20)] * 2
    assert [(one["attempt"], one["step"]) for one in events(daemon, run, "checkpoint")] == [(0, 20), (1, 40)]
    assert by_rank(daemon, "steps_total") == [30] * 2
