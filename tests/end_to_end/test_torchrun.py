"""examples/ddp_torchrun.py by torchrun itself, with real gloo ranks: what they print is what is kept, and a restart is one run."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest
from end_to_end.conftest import finish
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from end_to_end.conftest import Process
    from processes import Daemon

pytest.importorskip("torch")

EXAMPLE = "examples/ddp_torchrun.py"


def torchrun(ranks: int, *flags: str) -> list[str]:
    """The arguments of Python for so many ranks."""
    return ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--master-port=0", *flags, EXAMPLE]


def series(daemon: Daemon, family: str, *labels: str) -> dict[str, float]:
    """The series of a family of the example's run that have some labels more, as ``rank="0"``, by their labels."""
    found = {
        name: value for name, value in daemon.series().items() if name.startswith(f"trackside_training_{family}{{")
    }
    return {name: value for name, value in found.items() if all(one in name for one in ('run="ddp_torchrun"', *labels))}


def by_rank(daemon: Daemon, family: str, *labels: str) -> list[float]:
    """The same, in the order of the ranks."""
    found = series(daemon, family, *labels).items()
    return [value for _, value in sorted(found, key=lambda one: re.findall(r'rank="(\d+)"', one[0]))]


def events(daemon: Daemon, run: str, kind: str) -> list[dict[str, Any]]:
    """Of a run, oldest first."""
    found = [one for one in daemon.api(f"events?run={run}").json()["events"] if one["kind"] == kind]
    return sorted(found, key=lambda one: one["time"])


def test_four_ranks_are_each_kept_as_they_are_printed(
    daemon: Daemon, start_training: Callable[..., Process], tmp_path: Path
) -> None:
    flags = ("--steps=110", f"--checkpoint={tmp_path / 'last.pt'}", "--nan-at=101")
    printed = finish(start_training(daemon, *torchrun(4), *flags))
    eventually(
        lambda: series(daemon, "state", 'state="finished"') and by_rank(daemon, "state", 'state="finished"') == [1]
    )
    assert by_rank(daemon, "rank_state", 'state="finished"') == [1] * 4
    assert by_rank(daemon, "steps_total") == [110] * 4
    assert by_rank(daemon, "samples_total") == [110 * 128] * 4
    assert by_rank(daemon, "nonfinite_total", 'key="loss"') == [10] * 4
    assert by_rank(daemon, "first_batch_wait_seconds_count") == [1] * 4
    assert by_rank(daemon, "data_wait_seconds_count") == [109] * 4
    (run,) = daemon.api("runs").json()["runs"]
    assert run["world_size"] == 4
    assert [one["fields"]["bytes"] for one in events(daemon, run["id"], "checkpoint")] == [
        (tmp_path / "last.pt").stat().st_size
    ] * 2
    assert by_rank(daemon, "phase_seconds_total", 'phase="checkpoint"')[0] > 0
    kept = [daemon.values(run["id"], key) for key in ("loss", "grad_norm")]
    told = [tuple(f"{values[step]:.4f}" for values in kept) for step in (50, 100)]
    assert re.findall(r"loss of rank 0 (\S+)  gradient norm (\S+)", printed) == told
    eventually(lambda: [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == "NonFinite"])


def test_what_torchrun_restarts_after_a_rank_was_killed_is_the_same_run(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], tmp_path: Path
) -> None:
    daemon = start_daemon(environ={"TRACKSIDE_ALERTS__STRAGGLER_WINDOW": "0.1"})
    flags = ("--steps=1200", f"--checkpoint={tmp_path / 'last.pt'}")
    training = start_training(daemon, *torchrun(2, "--max-restarts=1", "--monitor-interval=0.1"), *flags)
    run = eventually(lambda: daemon.api("runs").json()["runs"])[0]["id"]
    eventually(lambda: len(series(daemon, "straggler_ratio")) == 2)
    eventually(lambda: events(daemon, run, "checkpoint"))
    ours = {one["rank"]: one["pid"] for one in daemon.api("processes").json()["processes"] if one["role"] == "rank"}
    os.kill(ours[1], signal.SIGKILL)
    eventually(lambda: events(daemon, run, "run_restarted"))
    saved = {one["step"] for one in events(daemon, run, "checkpoint") if one["attempt"] == 0}
    finish(training)
    eventually(lambda: by_rank(daemon, "state", 'state="finished"') == [1])
    (found,) = daemon.api("runs").json()["runs"]
    assert found["state"] == "finished"
    ended = {(one["attempt"], one["rank"]): one["fields"] for one in events(daemon, run, "rank_ended")}
    assert (ended[0, 1]["state"], ended[0, 1]["cause"]) == ("failed", "SIGKILL")
    assert ended[0, 0]["state"] in {"failed", "stopped"}  # its collective fails, or torchrun's SIGTERM is faster
    assert [ended[1, rank]["state"] for rank in range(2)] == ["finished"] * 2
    resumed = {one["fields"]["step"] for one in events(daemon, run, "resume")}
    assert resumed == {max(saved)}
    assert by_rank(daemon, "steps_total") == [1200 - max(saved)] * 2
    assert series(daemon, "run_info", 'attempt="1"', 'world_size="2"')
