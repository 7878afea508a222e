"""Find the runs that a run is compared with: a pinned one, the last of the same name, or those with a tag."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import RunFilter, UnknownRunError

if TYPE_CHECKING:
    import sqlite3

MOST = 8  # newest runs with a tag


class Baseline(NamedTuple):
    """Runs to compare with.

    Attributes:
        runs: Their ids.
        chosen: How they were found: ``run``, ``tag``, ``pinned`` or ``name``.
    """

    runs: tuple[str, ...]
    chosen: str


def find_baseline(connection: sqlite3.Connection, uid: str, text: str = "") -> Baseline | None:
    """Return the baseline of a run, by its id.

    Args:
        connection: In a transaction.
        uid: The run's id.
        text: A run, or a tag, whose newest finished runs count. Empty for the newest pinned run of the same name,
            else the newest finished one that began earlier.

    Returns:
        The baseline; None if *text* is empty and there is none.

    Raises:
        UnknownRunError: *text* is neither a run nor a tag of another finished run, or there is no run with this id.
    """
    run = reader.head(connection, uid)
    if text:
        try:
            return Baseline((reader.resolve(connection, text),), "run")
        except UnknownRunError as error:
            tagged = reader.runs(connection, RunFilter(tag=text, state="finished", limit=MOST + 1))
            if not (found := [one["id"] for one in tagged if one["id"] != uid][:MOST]):
                raise UnknownRunError(f"{error}, and no other finished run has this tag") from None
            return Baseline(tuple(found), "tag")
    named = connection.execute(
        "SELECT uid, pinned FROM run WHERE name = ? AND uid != ? AND NOT deleted AND ended IS NOT NULL AND started <= ? "
        "AND (pinned OR state = 'finished') ORDER BY pinned DESC, started DESC LIMIT 1",
        (run["name"], uid, run["started"]),
    ).fetchone()
    return None if named is None else Baseline((named[0],), "pinned" if named[1] else "name")
