"""The ends of sessions that are over a limit of the page, so that `Runs` does not follow them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import RunState
from trackside_daemon.model.session import process_of
from trackside_daemon.training.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trackside.wire import Identity
    from trackside_daemon.ingest.session import IngestSession
    from trackside_daemon.model.records import Record
    from trackside_daemon.model.session import Process
    from trackside_daemon.training.moment import Moment
    from trackside_daemon.training.verdict import Exit


def exited_strays(sessions: Iterable[IngestSession], process: Process, ended: Exit, at: float) -> list[Batch]:
    """Return the ends of the sessions of a process that exited, *at* in Unix seconds."""
    records: list[Record] = []
    for session in sessions:
        if session.stray is not None and process_of(session.stray) == process:
            session.stray = None
            state, cause = verdict(session.bye, ended)
            records.append(RunState(session.ref.run, session.ref.attempt, state, cause, at))
    return [Batch("ingest", records=records)] if records else []


def lost_strays(
    sessions: Iterable[IngestSession], is_lost: Callable[[Identity, float], bool], now: Moment
) -> list[Batch]:
    """Return the ends of the sessions whose processes are lost; *is_lost* gets the seconds of their silence."""
    records: list[Record] = []
    for session in sessions:
        if (
            session.stray is not None
            and session.bye is None
            and is_lost(session.stray, now.monotonic - session.received_at)
        ):
            session.stray = None
            state, cause = verdict(None, None)
            records.append(RunState(session.ref.run, session.ref.attempt, state, cause, now.wall))
    return [Batch("ingest", records=records)] if records else []
