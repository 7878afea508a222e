"""Derive how an attempt ended from the ends that its ranks reported late."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trackside_daemon.model.records import ENDS

if TYPE_CHECKING:
    import sqlite3


def combined_end(connection: sqlite3.Connection, run: int, attempt: int) -> tuple[str, str, float] | None:
    """Return state, cause and time of an attempt's end, from the last end of each rank; None if a rank has none yet."""
    rows = connection.execute(
        "SELECT rank, fields, time FROM event WHERE run = ? AND attempt = ? AND kind = 'rank_ended' ORDER BY id",
        (run, attempt),
    )
    ends = {rank: (json.loads(fields), time) for rank, fields, time in rows}
    ranks = connection.execute("SELECT rank FROM stream WHERE run = ? AND attempt = ?", (run, attempt))
    if any(rank not in ends for (rank,) in ranks):
        return None
    states = {fields.get("state") for fields, _ in ends.values()}
    causes = sorted({str(fields.get("cause", "")) for fields, _ in ends.values()} - {""})
    ended = max((time for _, time in ends.values()), default=0.0)
    return next((state for state in ENDS if state in states), "lost"), ", ".join(causes), ended
