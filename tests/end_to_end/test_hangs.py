"""Real Gloo ranks hang, and the alert names the rank, the collective and the line."""

from __future__ import annotations

import re
import time
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from end_to_end import hanging_ranks
from end_to_end.inbox import Inbox
from processes import eventually, require

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from end_to_end.conftest import Process
    from end_to_end.inbox import Letter
    from processes import Daemon
require("torch")

SCRIPT = Path(hanging_ranks.__file__)
SAME_TIME = 10  # runs at the same time
WEBHOOK = "TRACKSIDE_ALERTS__SINKS__WEBHOOK__URL"
EARLY = {"TRACKSIDE_ALERTS__STALL_AFTER": "3"}
LINES = {
    found[1]: number
    for number, line in enumerate(SCRIPT.read_text(encoding="utf-8").splitlines(), 1)
    if (found := re.search("# fault: (.*)", line))
}
FAULTS = {
    "late": ("never_arrived", f"hanging_ranks.py:{LINES['late']} in read_late"),
    "operation": ("other_operation", f"hanging_ranks.py:{LINES['operation']} in fail"),
    "shape": ("other_shape", f"hanging_ranks.py:{LINES['shape']} in fail"),
    "dead": ("ended", ""),
    "loader": ("never_arrived", f"hanging_ranks.py:{LINES['loader']} in main"),
    "GIL": ("silent", ""),
    "SIGSTOP": ("silent", ""),
}
"""By fault, the verdict and the place of the faulty rank."""

COLLECTIVES = ("all_reduce", "all_gather", "barrier")


class Planted(NamedTuple):
    """A run with a fault."""

    name: str
    fault: str
    collective: str
    world: int
    faulty: int

    @property
    def alert(self) -> str:
        """The alert that has the verdict."""
        return "TrainingProcessDied" if self.fault == "dead" else "TrainingStalled"


def planted(count: int, most: int) -> list[Planted]:
    """Return runs with all faults, in turn with 2 to *most* ranks, of which another one is faulty each time."""
    worlds, faults = cycle(range(2, most + 1)), islice(cycle(FAULTS), count)
    return [
        # Gloo's all_reduce waits for tensors of another size; its other collectives fail.
        Planted(f"run{number}-{fault}", fault, COLLECTIVES[fault != "shape" and number % 3], world, number % world)
        for number, (fault, world) in enumerate(zip(faults, worlds, strict=False))
    ]


def begun(run: Planted, daemon: Daemon, start_training: Callable[..., Process], store: Path) -> list[Process]:
    """Start the ranks of a run."""
    size = {name: str(run.world) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    same = {"TRACKSIDE_RUN_ID": run.name, "TRACKSIDE_RUN_NAME": run.name, "FAULTY": str(run.faulty), **size}
    script = str(SCRIPT), str(store / run.name), run.fault, run.collective
    return [start_training(daemon, *script, RANK=str(rank), LOCAL_RANK=str(rank), **same) for rank in range(run.world)]


def with_verdicts(daemon: Daemon, runs: Sequence[Planted]) -> dict[str, tuple[dict[str, Any], float]]:
    """Wait until the alerts of all runs have a verdict; return by run the first, and its seconds after the alert."""
    found: dict[str, tuple[dict[str, Any], float]] = {}
    expected = {(run.name, run.alert) for run in runs}

    def all_found() -> bool:
        for one in daemon.api("alerts?firing=true").json()["alerts"]:
            text = one["evidence"].get("hang", {}).get("text")
            # Once a stall that returned is judged again, the next tick writes the description.
            if text and (one["run"], one["alert"]) in expected and one["description"].startswith(text):
                found.setdefault(one["run"], (one, time.time() - one["started"]))
        return len(found) == len(runs)

    eventually(all_found)
    return found


def mistakes(run: Planted, alert: dict[str, Any]) -> tuple[str, str]:
    """Return how the verdict names other ranks than it should, and how another call or place; empty if it does not."""
    found = alert["evidence"]["hang"]
    kind, place = FAULTS[run.fault]
    waiting = [rank for rank in range(run.world) if rank != run.faulty]
    ranks = _difference(run, (found["ranks"], found["waiting"]), ([run.faulty], waiting))
    call = tuple(found[name] for name in ("kind", "group", "operation", "sequence"))
    there = found["places"].get(str(run.faulty), "")
    expected = kind, "default_pg", run.collective, hanging_ranks.STEPS + 1
    return ranks, _difference(run, (*call, there), (*expected, place))


def _difference(run: Planted, found: object, expected: object) -> str:
    return "" if found == expected else f"{run.name} with {run.collective}: {found} instead of {expected}"


def captured(daemon: Daemon) -> set[tuple[str, str]]:
    """Return the kinds of the captures, each with the alert that caused it."""
    return {(one["kind"], one["cause"]["alert"]) for one in daemon.api("captures").json()["captures"] if one["cause"]}


def check_answers(run: Planted, alert: dict[str, Any], daemon: Daemon, inbox: Inbox) -> None:
    """Check that the notifications and the diagnosis have the verdict."""
    text = alert["evidence"]["hang"]["text"].partition(";")[0]  # the seconds of the wait, in the rest, differ
    assert f"{hanging_ranks.STEPS + 1} of default_pg" in text
    assert daemon.api(f"runs/{run.name}/diagnosis").json()["hang"]["text"].startswith(text)
    reported = eventually(lambda: [text for letter in inbox.of("direct") for text in descriptions(letter, run)])
    assert all(one.startswith(text) for one in reported), reported


def descriptions(letter: Letter, run: Planted) -> list[str]:
    """Return the descriptions of the alerts about the stall of a run in a message of the webhook."""
    return [
        one["annotations"]["description"]
        for one in letter.body["alerts"]
        if (one["labels"]["run"], one["labels"]["alertname"]) == (run.name, "TracksideTrainingStalled")
    ]


def test_the_alert_names_the_rank_the_collective_and_the_line(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    count: Callable[[int, int], int],
    soaked: list[tuple[str, int, float]],
    place: Path,
) -> None:
    number = count(10, 100)
    runs = planted(number, 2 if number == 10 else 8)
    wrong: list[tuple[str, str]] = []
    waits: list[float] = []
    for first in range(0, number, SAME_TIME):
        # Each time another daemon: of many runs that die within a minute, one alert names a few.
        directory = place / str(first)
        directory.mkdir(mode=0o700)
        with closing(Inbox()) as inbox:
            daemon = start_daemon(directory=directory, environ={**EARLY, WEBHOOK: f"{inbox.url}/direct"})
            chosen = runs[first : first + SAME_TIME]
            processes = [process for run in chosen for process in begun(run, daemon, start_training, directory)]
            found = with_verdicts(daemon, chosen)
            if chosen[0].fault == "late":
                check_answers(chosen[0], found[chosen[0].name][0], daemon, inbox)
            eventually(lambda daemon=daemon: ("flight_recorder", "TrainingStalled") in captured(daemon))  # type: ignore[misc]
            for process in processes:
                process.kill()
            daemon.stop()
        wrong += [mistakes(run, found[run.name][0]) for run in chosen]
        waits += [seconds for _, seconds in found.values()]
    ranks, rest = (list(filter(None, texts)) for texts in zip(*wrong, strict=True))
    if number == 100:
        what = f"the same: {len(ranks)} wrong ranks, {len(rest)} wrong calls or places, longest time after the alert"
        soaked.append((what, number, max(waits)))
    assert len(ranks) <= number // 50, ranks
    assert len(rest) <= number // 20, rest


def test_a_straggler_that_recovers_has_no_verdict(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], tmp_path: Path
) -> None:
    daemon = start_daemon(environ=EARLY)
    begun(Planted("pauses", "pause", "all_reduce", 2, 1), daemon, start_training, tmp_path)
    steps = 'trackside_training_step{rank="1",run="pauses"}'
    # It stays until the daemon asks, so that there is an alert. The steps after it take longer than a verdict.
    eventually(lambda: daemon.series().get(steps, 0.0) > hanging_ranks.STEPS + 2.5 / hanging_ranks.STEP_SECONDS)
    (alert,) = (one for one in daemon.api("alerts?run=pauses").json()["alerts"] if one["alert"] == "TrainingStalled")
    assert "hang" not in alert["evidence"]
