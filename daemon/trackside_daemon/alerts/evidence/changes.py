"""Changes before a slow-down: packages, code and settings of the attempt, and other runs on this machine."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.model import training_families as f

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.alerts.evidence.causes.level import SlowDown
    from trackside_daemon.alerts.evidence.sources import Case

MOST = 10  # changes of one alert
LONGEST = 60  # characters of a value
BEFORE = 60.0  # seconds before a slow-down in which the start of another run may have caused it

# Facts about an attempt that its start chooses.
_FACTS = ("host", "git_commit", "git_dirty", "command", "packages", "config", "hardware", "world_size")


def changes(case: Case, slow: SlowDown, run: str) -> list[str]:
    """Return, each in a line, the runs that began with a slow-down and the differences from the attempt before."""
    lines = [*_other_runs(case, slow, run), *_of_attempt(case)]
    return lines[:MOST]


def _other_runs(case: Case, slow: SlowDown, run: str) -> Iterator[str]:
    (started,) = case.sources.state.values(case.now, f.STARTED)
    for name in dict.fromkeys(labels[0] for labels in started if labels[0] != run):
        began = min(at for labels, at in started.items() if labels[0] == name and isinstance(at, float))
        if slow.began - BEFORE <= began <= slow.ended:
            yield f"run {name} began on this machine {abs(slow.began - began):.0f} s {'before' if began < slow.began else 'after'}"


def _of_attempt(case: Case) -> Iterator[str]:
    attempts: list[dict[str, Any]] = []
    with suppress(UnknownRunError), case.sources.history.reading() as connection:
        attempts = reader.head(connection, case.alert.run)["attempt_list"][-2:]
    if len(attempts) == 2:
        before, now = (_flat({name: attempt.get(name) for name in _FACTS}) for attempt in attempts)
        for name in dict.fromkeys([*before, *now]):
            if before.get(name) != now.get(name):
                yield f"{name}: {before.get(name, 'none')} before attempt {attempts[-1]['attempt']}, now {now.get(name, 'none')}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values by their dotted names, as short texts."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = str(value)[:LONGEST]
    return flat
