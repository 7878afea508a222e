"""How an attempt has ended, when its ranks tell it one by one and late."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trackside_daemon.model.records import ENDS

if TYPE_CHECKING:
    import sqlite3


def combined_end(connection: sqlite3.Connection, run: int, attempt: int) -> tuple[str, str, float] | None:
    """State, cause and time of an attempt's end, by the last word of each of its ranks; None while one has said none."""
    said = connection.execute(
        "SELECT rank, fields, time FROM event WHERE run = ? AND attempt = ? AND kind = 'rank_ended' ORDER BY id",
        (run, attempt),
    )
    ends = {rank: (json.loads(fields), time) for rank, fields, time in said}
    ranks = connection.execute("SELECT rank FROM stream WHERE run = ? AND attempt = ?", (run, attempt))
    if any(rank not in ends for (rank,) in ranks):
        return None
    states = {fields.get("state") for fields, _ in ends.values()}
    causes = sorted({str(fields.get("cause", "")) for fields, _ in ends.values()} - {""})
    ended = max((time for _, time in ends.values()), default=0.0)
    return next((state for state in ENDS if state in states), "lost"), ", ".join(causes), ended
