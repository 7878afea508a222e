"""What happened to a run before a process of it died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.evidence.gpus import xids
from trackside_daemon.history.read import reader

if TYPE_CHECKING:
    from trackside_daemon.alerts.evidence.sources import Case

EVENTS = 10
RECENT = 600.0
"""Seconds."""


def deaths(case: Case) -> dict[str, Any]:
    """The events of the run in the last ten minutes, with how its ranks ended, and the Xid errors in that time."""
    told = xids(case)
    if not case.alert.run:
        return told
    case.sources.written()
    with case.sources.history.reading() as connection:
        every = reader.events(connection, case.alert.run, EVENTS)
    events = [
        {name: one[name] for name in ("time", "rank", "step", "kind", "fields")}
        for one in every
        if case.wall - one["time"] <= RECENT
    ]
    return {**told, **({"events": events} if events else {})}
