"""Events of a run before one of its processes died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside.wire import EXCEPTION
from trackside_daemon.alerts.evidence.gpus import xids
from trackside_daemon.history.read import reader

if TYPE_CHECKING:
    from trackside_daemon.alerts.evidence.sources import Case

EVENTS = 10  # most events
RECENT = 600.0  # greatest age of an event, in seconds


def deaths(case: Case) -> dict[str, Any]:
    """Return the exception of the rank, the recent events of the run with the ends of its ranks, and recent Xid errors."""
    errors = xids(case)
    if not case.alert.run:
        return errors
    with case.sources.history.reading() as connection:
        latest = reader.events(connection, case.alert.run, EVENTS)
    recent = [event for event in latest if case.wall - event["time"] <= RECENT]
    raised = [event for event in recent if event["kind"] == EXCEPTION and str(event["rank"]) in {*case.ranks(), "None"}]
    events = [
        {name: event[name] for name in ("time", "rank", "step", "kind", "fields")}
        for event in recent
        if event["kind"] != EXCEPTION
    ]
    return {
        **errors,
        **({"exception": raised[-1]["fields"]} if raised else {}),
        **({"events": events} if events else {}),
    }
