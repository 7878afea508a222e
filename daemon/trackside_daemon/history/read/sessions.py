"""Read the sessions of clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import sqlite3


class StoredSession(NamedTuple):
    """A client session in the history.

    Attributes:
        committed: Number of its last message that was committed.
        attempt: The attempt of its run that it belongs to.
        ended: Its rank of that attempt reported its end itself.
        owner: The id of its run's `Owner`; None if no session with one has opened the run.
        unowned: The id of its run, if that has no owner, was not imported, and its attempt has not ended; else empty.
        run: The id of its run.
    """

    committed: int
    attempt: int
    ended: bool = False
    owner: str | None = None
    unowned: str = ""
    run: str = ""


def stored_session(connection: sqlite3.Connection, session: bytes) -> StoredSession | None:
    """Return a session; None if the history does not have it."""
    row = connection.execute(
        "SELECT session.committed, stream.attempt, run.owner, run.uid, attempt.ended IS NULL AND run.imported = 0 "
        "FROM session JOIN stream ON stream.id = session.stream JOIN run ON run.id = stream.run "
        "JOIN attempt ON attempt.run = run.id AND attempt.number = stream.attempt WHERE session.id = ?",
        (session,),
    ).fetchone()
    if row is None:
        return None
    end = connection.execute(
        "SELECT event.fields FROM session JOIN stream ON stream.id = session.stream JOIN event ON event.run = stream.run "
        "AND event.attempt = stream.attempt AND event.rank = stream.rank WHERE session.id = ? "
        "AND event.kind = 'rank_ended' ORDER BY event.id DESC LIMIT 1",
        (session,),
    ).fetchone()
    committed, attempt, owner, run, goes_on = row
    ended = end is not None and json.loads(end[0]).get("state") != "lost"
    return StoredSession(committed, attempt, ended, owner, run if owner is None and goes_on else "", run)
