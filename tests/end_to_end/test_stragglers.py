"""A rank of four slows down and recovers: the alert and its end come within a minute each, and none comes without."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from end_to_end import failing_ranks
from processes import DEADLINE, eventually, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from end_to_end.conftest import Process
    from processes import Daemon
require("torch")

WORLD = 4
STEP_SECONDS = 0.3
FACTOR = 1.35
WITHIN = 60.0
SAME_TIME = 5  # runs at the same time
HEALTHY_SECONDS = 180.0
BUSY = "while True: pass"

pytestmark = pytest.mark.usefixtures("only_soak")


def begun(name: str, daemon: Daemon, start_training: Callable[..., Process], store: Path) -> list[Process]:
    """Start the ranks of a run."""
    size = {variable: str(WORLD) for variable in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    same = {"TRACKSIDE_RUN_ID": name, "TRACKSIDE_RUN_NAME": name, **size}
    script = str(failing_ranks.__file__), str(store / name), str(STEP_SECONDS), str(FACTOR)
    return [start_training(daemon, *script, RANK=str(rank), LOCAL_RANK=str(rank), **same) for rank in range(WORLD)]


def send_line(rank: Process, line: str) -> float:
    """Send a line to a rank; return the time."""
    assert rank.stdin is not None
    rank.stdin.write(f"{line}\n")
    rank.stdin.flush()
    return time.time()


def stragglers(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """Return the newest alert about a straggler by run."""
    alerts = daemon.api("alerts").json()["alerts"]
    return {one["run"]: one for one in reversed(alerts) if one["alert"] == "StragglerRank"}


def await_steps(daemon: Daemon, names: list[str], steps: float) -> None:
    """Wait until all runs have made so many steps."""

    def made() -> bool:
        series = daemon.series()
        return min(series.get(f'trackside_training_step{{rank="0",run="{name}"}}', 0) for name in names) >= steps

    eventually(made, deadline=4 * DEADLINE, pause=1.0)


def seen(daemon: Daemon, names: list[str], words: str = "") -> dict[str, float]:
    """Wait until a straggler's alert of each run has these words in its summary; return when by run."""
    found: dict[str, float] = {}

    def all_seen() -> bool:
        for name, one in stragglers(daemon).items():
            if name in names and words in one["summary"]:
                found.setdefault(name, time.time())
        return len(found) == len(names)

    eventually(all_seen, pause=1.0)
    return found


def end(ranks: Iterable[Process]) -> None:
    for rank in ranks:
        rank.kill()
        rank.wait(DEADLINE)


def test_a_straggler_has_an_alert_and_its_end_within_a_minute_each(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    soaked: list[tuple[str, int, float]],
    tmp_path: Path,
) -> None:
    number = int(os.environ.get("RUNS", "20"))
    daemon, took = start_daemon(), list[tuple[float, float]]()
    for first in range(0, number, SAME_TIME):
        names = [f"run{row}" for row in range(first, min(number, first + SAME_TIME))]
        ranks = {name: begun(name, daemon, start_training, tmp_path) for name in names}
        await_steps(daemon, names, 150)
        slowed = {name: send_line(ranks[name][row % WORLD], "slow") for row, name in enumerate(names)}
        begins = seen(daemon, names)
        found = stragglers(daemon)
        assert [found[name]["labels"]["rank"] for name in names] == [str(row % WORLD) for row in range(len(names))]
        recovered = {name: send_line(ranks[name][row % WORLD], "recover") for row, name in enumerate(names)}
        ends = seen(daemon, names, "; recovered at ")
        took += [(begins[name] - slowed[name], ends[name] - recovered[name]) for name in names]
        end(rank for of in ranks.values() for rank in of)
    in_time = sum(max(one) <= WITHIN for one in took)
    longest = max(begin for begin, _ in took)
    what = f"the same: {in_time} in time, {longest:.0f} s until the alert at most, and until its end"
    soaked.append((what, number, max(end for _, end in took)))
    assert in_time >= 0.9 * number, took


def test_healthy_runs_under_load_have_no_straggler(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], tmp_path: Path
) -> None:
    number = int(os.environ.get("RUNS", "20"))
    daemon = start_daemon()
    with ExitStack() as ends:
        for _ in range(4):
            ends.callback(ends.enter_context(subprocess.Popen([sys.executable, "-c", BUSY])).kill)
        for first in range(0, number, SAME_TIME):
            names = [f"run{row}" for row in range(first, min(number, first + SAME_TIME))]
            ranks = [rank for name in names for rank in begun(name, daemon, start_training, tmp_path)]
            await_steps(daemon, names, HEALTHY_SECONDS / STEP_SECONDS)
            end(ranks)
    assert stragglers(daemon) == {}
