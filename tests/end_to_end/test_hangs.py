"""Real Gloo ranks hang, and the alert names the rank, the collective and the line."""

from __future__ import annotations

import re
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from end_to_end import hanging_ranks
from processes import eventually, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from processes import Daemon
require("torch")

SCRIPT = Path(hanging_ranks.__file__)
SAME_TIME = 10  # runs at the same time
LINES = {
    found[1]: number
    for number, line in enumerate(SCRIPT.read_text(encoding="utf-8").splitlines(), 1)
    if (found := re.search("# fault: (.*)", line))
}
KINDS = {
    "late": ("never_arrived", f"hanging_ranks.py:{LINES['late']} in read_late"),
    "loader": ("never_arrived", f"hanging_ranks.py:{LINES['loader']} in main"),
    "operation": ("other_operation", f"hanging_ranks.py:{LINES['operation']} in fail"),
    "shape": ("other_shape", f"hanging_ranks.py:{LINES['shape']} in fail"),
    "SIGSTOP": ("silent", ""),
    "GIL": ("silent", ""),
}
"""By fault, the verdict and the place of the faulty rank; a killed rank is named by its own alert."""


class Planted(NamedTuple):
    """A run with a fault."""

    name: str
    fault: str
    world: int
    faulty: int


def planted(count: int, most: int) -> list[Planted]:
    """Return runs with all faults, in turn with 2 to *most* ranks, of which another one is faulty each time."""
    worlds = cycle(range(2, most + 1))
    faults = islice(cycle([*KINDS, "SIGKILL"]), count)
    return [
        Planted(f"run{number}-{fault}", fault, world, number % world)
        for number, (fault, world) in enumerate(zip(faults, worlds, strict=False))
    ]


def begun(run: Planted, daemon: Daemon, start_training: Callable[..., Process], store: Path) -> list[Process]:
    """Start the ranks of a run."""
    size = {name: str(run.world) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    same = {"TRACKSIDE_RUN_ID": run.name, "TRACKSIDE_RUN_NAME": run.name, "FAULTY": str(run.faulty), **size}
    return [
        start_training(
            daemon, str(SCRIPT), str(store / run.name), run.fault, RANK=str(rank), LOCAL_RANK=str(rank), **same
        )
        for rank in range(run.world)
    ]


def alerts(daemon: Daemon, run: str, name: str) -> list[dict[str, Any]]:
    """Return the alerts of a run with a name; none before the run begins."""
    return [one for one in daemon.api(f"alerts?run={run}").json().get("alerts", ()) if one["alert"] == name]


def with_verdict(daemon: Daemon, run: str) -> list[dict[str, Any]]:
    """Return the alert of a stalled run, once its text has the verdict."""
    found = alerts(daemon, run, "TrainingStalled")
    return [one for one in found if one["description"].startswith(one["evidence"].get("hang", {}).get("text", "\n"))]


def captured(daemon: Daemon) -> set[tuple[str, str]]:
    """Return the kinds of the captures, each with the alert that caused it."""
    return {(one["kind"], one["cause"]["alert"]) for one in daemon.api("captures").json()["captures"] if one["cause"]}


def mistakes(run: Planted, daemon: Daemon) -> tuple[bool, bool]:
    """Wait for the alert of a run; return whether it names another rank than the faulty one, or another call or place."""
    if run.fault == "SIGKILL":
        (died,) = eventually(lambda: alerts(daemon, run.name, "TrainingProcessDied"))
        return died["labels"]["rank"] != str(run.faulty), False
    (alert,) = eventually(lambda: with_verdict(daemon, run.name))
    found = alert["evidence"]["hang"]
    kind, place = KINDS[run.fault]
    call = found["kind"], found["group"], found["operation"], found["sequence"]
    expected = kind, "default_pg", "all_reduce", hanging_ranks.STEPS + 1
    return found["ranks"] != [run.faulty], (call, found["places"].get(str(run.faulty), "")) != (expected, place)


def test_the_alert_names_the_rank_the_collective_and_the_line(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    count: Callable[[int, int], int],
    place: Path,
) -> None:
    number = count(10, 100)
    runs = planted(number, 3 if number == 10 else 8)
    wrong: list[tuple[bool, bool, str]] = []
    for first in range(0, number, SAME_TIME):
        # Each time another daemon: of many runs that die within a minute, one alert names a few.
        directory = place / str(first)
        directory.mkdir(mode=0o700)
        daemon = start_daemon(directory=directory, environ={"TRACKSIDE_ALERTS__STALL_AFTER": "3"})
        chosen = runs[first : first + SAME_TIME]
        processes = [process for run in chosen for process in begun(run, daemon, start_training, directory)]
        wrong += [(*mistakes(run, daemon), run.name) for run in chosen]
        eventually(lambda daemon=daemon: ("flight_recorder", "TrainingStalled") in captured(daemon))  # type: ignore[misc]
        for process in processes:
            process.kill()
        daemon.stop()
    assert sum(rank for rank, _, _ in wrong) <= number // 50, wrong
    assert sum(rest for _, rest, _ in wrong) <= number // 20, wrong


def test_a_straggler_that_recovers_has_no_verdict(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], tmp_path: Path
) -> None:
    daemon = start_daemon(environ={"TRACKSIDE_ALERTS__STALL_AFTER": "3"})
    run = Planted("pauses", "pause", 2, 1)
    begun(run, daemon, start_training, tmp_path)
    steps = 'trackside_training_step{rank="1",run="pauses"}'
    eventually(lambda: daemon.series().get(steps, 0.0) > hanging_ranks.STEPS + 20)
    assert [one for one in alerts(daemon, "pauses", "TrainingStalled") if "hang" in one["evidence"]] == []
