"""Events of a run before one of its processes died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.evidence.gpus import xids
from trackside_daemon.history.read import reader

if TYPE_CHECKING:
    from trackside_daemon.alerts.evidence.sources import Case

EVENTS = 10  # most events
RECENT = 600.0  # greatest age of an event, in seconds


def deaths(case: Case) -> dict[str, Any]:
    """Return the recent events of the run, which include the ends of its ranks, and the recent Xid errors."""
    errors = xids(case)
    if not case.alert.run:
        return errors
    # The end of the rank may still be in the queue of the writer.
    case.sources.wait_written()
    with case.sources.history.reading() as connection:
        latest = reader.events(connection, case.alert.run, EVENTS)
    events = [
        {name: event[name] for name in ("time", "rank", "step", "kind", "fields")}
        for event in latest
        if case.wall - event["time"] <= RECENT
    ]
    return {**errors, **({"events": events} if events else {})}
