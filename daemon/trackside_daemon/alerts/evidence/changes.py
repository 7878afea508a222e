"""Changes before a slow-down: packages, code, settings and environment of the run, and what began on this machine."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trackside_daemon.causes import level
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.model.configuration import FACTS, flat
from trackside_daemon.model.families import training as f
from trackside_daemon.model.text import duration

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from trackside_daemon.alerts.evidence.sources import Case
    from trackside_daemon.causes.level import SlowDown
    from trackside_daemon.causes.readings import Neighbour

MOST = 16  # changes of one alert
RUNS = 20  # newest runs among which the one before is searched
LONGEST = 60  # characters of a value
BEFORE = 60.0  # seconds before a slow-down in which the start of another run or process may have caused it

_FACTS = (*FACTS, "packages", "environ", "config", "hardware")  # what the start of an attempt chooses


def changes(case: Case, slow: SlowDown, run: str, neighbours: Sequence[Neighbour] = ()) -> list[str]:
    """Return, each in a line, the runs and processes that began with a slow-down, and how the run differs from before."""
    lines = [*_other_runs(case, slow, run), *_other_processes(case, slow, neighbours), *_of_run(case, slow)]
    return lines[:MOST]


def _other_runs(case: Case, slow: SlowDown, run: str) -> Iterator[str]:
    (started,) = case.sources.state.values(case.now, f.STARTED)
    for name in dict.fromkeys(labels[0] for labels in started if labels[0] != run):
        began = min(at for labels, at in started.items() if labels[0] == name and isinstance(at, float))
        if slow.began - BEFORE <= began <= slow.ended:
            yield f"run {name} began on this machine {_moment(began, slow)}"


def _other_processes(case: Case, slow: SlowDown, neighbours: Sequence[Neighbour]) -> Iterator[str]:
    for one in neighbours:
        began = case.wall - one.age
        if slow.began - BEFORE <= began <= slow.ended:
            yield f"process {one.pid} ({one.command}) began on this machine {_moment(began, slow)}"


def _moment(began: float, slow: SlowDown) -> str:
    return f"{duration(round(abs(slow.began - began)))} {'before' if began < slow.began else 'after'}"


def _of_run(case: Case, slow: SlowDown) -> Iterator[str]:
    """Yield the differences from the attempt before, or from the run before of this name, if they are new."""
    attempts: list[dict[str, Any]] = []
    earlier = ""
    with suppress(UnknownRunError), case.sources.history.reading() as connection:
        attempts = reader.head(connection, case.alert.run)["attempt_list"][-2:]
        if len(attempts) == 1:
            earlier = _run_before(connection, case, attempts[0]["started"])
            attempts[:0] = reader.head(connection, earlier)["attempt_list"][-1:] if earlier else []
    if len(attempts) < 2 or not (slow.lasting or attempts[1]["started"] >= slow.began - level.BEFORE):
        return
    then = f"in run {earlier}" if earlier else f"before attempt {attempts[1]['attempt']}"
    before, now = (flat({name: attempt.get(name) for name in _FACTS}) for attempt in attempts)
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name):
            yield f"{name}: {_short(before.get(name))} {then}, now {_short(now.get(name))}"


def _run_before(connection: sqlite3.Connection, case: Case, started: float) -> str:
    """Return the id of the newest run of this name that began before; empty without any."""
    runs = reader.runs(connection, reader.RunFilter(case.run, until=started, limit=RUNS))
    return next((str(run["id"]) for run in runs if run["name"] == case.run and run["id"] != case.alert.run), "")


def _short(value: Any) -> str:
    return "none" if value is None else str(value)[:LONGEST]
