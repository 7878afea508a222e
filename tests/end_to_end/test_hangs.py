"""Real ranks hang, alone and with others, and every face says in one sentence for whom the run waits, and where that is."""

from __future__ import annotations

import re
import time
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from end_to_end import hanging_ranks
from end_to_end.faces import differing
from end_to_end.inbox import Inbox
from processes import DEADLINE, eventually, require

from trackside_daemon.alerts.sinks.group_outbox import CAUSE_SECONDS
from trackside_daemon.model.records import STALLS

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
    found[1]: f"hanging_ranks.py:{number} in"
    for number, line in enumerate(SCRIPT.read_text(encoding="utf-8").splitlines(), 1)
    if (found := re.search("# fault: (.*)", line))
}


class Fault(NamedTuple):
    """Expectations of a fault.

    Attributes:
        kind: That of the verdict of several ranks; a single one is outside any collective, or silent.
        place: Where the faulty rank is.
        words: What the verdict also says, as a regular expression.
    """

    kind: str
    place: str = ""
    words: str = ""


def at(fault: str, function: str) -> str:
    """Return the place of a fault, in words."""
    return f"{LINES[fault]} {function}"


LOADING = at("data", "main")
FAULTS = {
    "late": Fault("never_arrived", at("late", "read_late")),
    "operation": Fault("other_operation", at("operation", "fail"), "called broadcast instead of"),
    "shape": Fault("other_shape", at("shape", "fail")),
    "dead": Fault("ended", words=r"rank \d was killed by SIGKILL"),
    "early": Fault("ended", words=r"rank \d has finished"),
    "GIL": Fault("silent", words="a call holds the GIL"),
    "SIGSTOP": Fault("silent", words=r"`kill -CONT \d+` continues it"),
    "loader": Fault("never_arrived", LOADING, rf"worker \d+ sleeps at {at('loader', '_sleep')}"),
    "loader deadlock": Fault(
        "never_arrived", LOADING, rf"worker \d+ waits for a lock at {at('loader deadlock', '__getitem__')}"
    ),
    "slow item": Fault("never_arrived", LOADING, rf"worker \d+ computes at {at('slow item', '_compute')}"),
    "stopped worker": Fault("never_arrived", LOADING, r"worker (\d+) is stopped, and `kill -CONT \1` continues it"),
    "worker's read": Fault("never_arrived", LOADING, rf"worker \d+ is at {at('''worker's read''', '__getitem__')}"),
    "dead worker": Fault("never_arrived", at("dead worker", "consumed"), r"child \w+ \d+ was killed by SIGKILL"),
    "full queue": Fault(
        "never_arrived",
        f"hanging_ranks.py:{int(LINES['dead worker'].split(':')[1].split()[0]) + 9} in full_queue",
        rf"worker \d+ waits for room in a queue that is full at {at('full queue', 'produce')}",
    ),
    "Python": Fault("never_arrived", at("Python", "spin")),
    "read": Fault("never_arrived", at("read", "read")),
    "lock": Fault("never_arrived", at("lock", "lock_twice")),
    "thread": Fault("never_arrived", at("thread", "join_thread")),
    "child": Fault("never_arrived", at("child", "wait_for_child"), r"child cat \d+ is in"),
}
"""What is expected, by fault."""

COLLECTIVES = ("all_reduce", "all_gather", "barrier")
GLOO = ("late", "operation", "shape", "dead", "loader", "GIL", "SIGSTOP")
PAUSES = (
    *("short pause", "collection", "evaluation", "checkpoint", "unmarked evaluation", "stopped"),
    *("first batch", "compile", "epochs", "slower"),
)
"""What is no hang."""


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


def named(rows: Sequence[tuple[str, int, int]]) -> list[Planted]:
    """Return runs with these faults, worlds and faulty ranks."""
    return [
        # Gloo's all_reduce waits for tensors of another size; its other collectives fail.
        Planted(f"run{number}-{fault}".replace(" ", "-"), fault, COLLECTIVES[fault != "shape" and number % 3], *rest)
        for number, (fault, *rest) in enumerate(rows)
    ]


HANGS = (
    *(("late", 2, 1), ("late", 4, 2), ("operation", 3, 1), ("shape", 2, 1), ("shape", 4, 3)),
    *(("dead", 3, 1), ("early", 2, 1), ("early", 3, 2), ("GIL", 1, 0), ("GIL", 3, 2), ("SIGSTOP", 1, 0)),
    *(("SIGSTOP", 4, 0), ("loader", 1, 0), ("loader deadlock", 1, 0), ("loader deadlock", 2, 1)),
    *(("slow item", 1, 0), ("slow item", 2, 0), ("stopped worker", 1, 0), ("worker's read", 1, 0)),
    *(("dead worker", 1, 0), ("dead worker", 2, 1), ("full queue", 1, 0), ("full queue", 2, 0), ("Python", 1, 0)),
    *(("Python", 3, 1), ("read", 1, 0), ("read", 2, 1), ("lock", 1, 0), ("thread", 1, 0), ("child", 1, 0)),
)
"""Fault, ranks and the faulty one of each hang, of 1 to 4 ranks."""

FEW = (0, 2, 5, 10, 13, 19)
"""One of each way in which ranks wait; tests/captures/test_hang_verdict.py has the other verdicts."""


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
    """Return how the verdict names other ranks than it should, and how another call, place or cause; empty if it does not."""
    found, fault = alert["evidence"]["hang"], FAULTS[run.fault]
    waiting = [rank for rank in range(run.world) if rank != run.faulty]
    ranks = _difference(run, (found["ranks"], found["waiting"]), ([run.faulty], waiting))
    kind = fault.kind if run.world > 1 or fault.kind == "silent" else "outside"
    expected = (kind, *(("default_pg", run.collective, hanging_ranks.STEPS + 1) if run.world > 1 else ("", "", 0)))
    call = tuple(found[name] for name in ("kind", "group", "operation", "sequence"))
    there = found["places"].get(str(run.faulty), "")
    if not re.search(fault.words, found["text"], re.IGNORECASE):
        there, place = found["text"], f"…{fault.words}…"
    else:
        place = fault.place
    return ranks, _difference(run, (*call, there), (*expected, place))


def _difference(run: Planted, found: object, expected: object) -> str:
    return "" if found == expected else f"{run.name} with {run.collective}: {found} instead of {expected}"


def captured(daemon: Daemon) -> set[tuple[str, str]]:
    """Return the kinds of the captures, each with the alert that caused it."""
    return {(one["kind"], one["cause"]["alert"]) for one in daemon.api("captures").json()["captures"] if one["cause"]}


def check_notifications(run: Planted, alert: dict[str, Any], waited: float, inbox: Inbox) -> None:
    """Check that the notifications have a verdict that came while they wait for it; on a busy machine it comes later."""
    if waited > CAUSE_SECONDS:
        return
    text = alert["evidence"]["hang"]["text"].partition(";")[0]  # the seconds of the wait, in the rest, differ
    reported = eventually(lambda: [text for letter in inbox.of("direct") for text in descriptions(letter, run)])
    assert all(one.startswith(text) for one in reported), reported


def descriptions(letter: Letter, run: Planted) -> list[str]:
    """Return the descriptions of the alerts about the stall of a run in a message of the webhook."""
    return [
        one["annotations"]["description"]
        for one in letter.body["alerts"]
        if (one["labels"]["run"], one["labels"]["alertname"]) == (run.name, "TracksideTrainingStalled")
    ]


def test_every_face_names_the_rank_the_collective_and_the_line(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    count: Callable[[int, int], int],
    soaked: list[tuple[str, int, float]],
    place: Path,
) -> None:
    number = count(len(FEW), 100)
    soaks = number == 100
    worlds = islice(cycle(range(2, 9)), max(0, number - len(HANGS)))
    more = [(GLOO[row % len(GLOO)], world, row % world) for row, world in enumerate(worlds)]
    runs = named([*HANGS, *more] if soaks else [HANGS[row] for row in FEW])
    wrong: list[tuple[str, str]] = []
    differ: list[object] = []
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
                check_notifications(chosen[0], *found[chosen[0].name], inbox)
            eventually(lambda daemon=daemon: ("flight_recorder", "TrainingStalled") in captured(daemon))  # type: ignore[misc]
            compared = (chosen if first < len(HANGS) else []) if soaks else [chosen[0], chosen[3], chosen[-1]]
            differ += [one for run in compared if (one := differing(daemon, run.name))]
            for process in processes:
                process.kill()
            daemon.stop()
        wrong += [mistakes(run, found[run.name][0]) for run in chosen]
        waits += [seconds for _, seconds in found.values()]
    ranks, rest = (list(filter(None, texts)) for texts in zip(*wrong, strict=True))
    if soaks:
        what = f"the same: {len(ranks)} wrong ranks, {len(rest)} wrong calls, places or causes, {len(differ)} differing faces, longest time after the alert"
        soaked.append((what, number, max(waits)))
    assert len(ranks) <= number // 50, ranks
    assert len(rest) <= number // 20, rest
    assert not differ, differ


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


@pytest.mark.usefixtures("only_soak")
def test_a_pause_that_is_no_hang_has_neither_an_alert_nor_a_verdict(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], tmp_path: Path
) -> None:
    daemon = start_daemon()  # with the usual settings
    runs = named([(fault, 1 + row % 2, 0) for row, fault in enumerate(PAUSES)])
    for run in runs:
        begun(run, daemon, start_training, tmp_path)
    found: set[tuple[str, str]] = set()

    def all_went_on() -> bool:
        alerts = daemon.api("alerts").json()["alerts"]
        found.update((one["run"], one["summary"]) for one in alerts if one["alert"] in STALLS)
        broken = (run.name for run in runs if daemon.api(f"runs/{run.name}/diagnosis").json().get("health") == "broken")
        found.update((name, "broken") for name in broken)
        steps = [daemon.series().get(f'trackside_training_step{{rank="0",run="{run.name}"}}', 0.0) for run in runs]
        return min(steps) > hanging_ranks.STEPS + 1

    eventually(all_went_on, deadline=4 * DEADLINE, pause=2.0)
    assert found == set()
