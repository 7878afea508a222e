"""The results that a run states of itself (`trackside.Run.summary`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trackside_daemon.history.record.sanitize import to_json

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

MOST_BYTES = 64 * 1024  # of a run's results: each list of runs reads them


def add_results(connection: sqlite3.Connection, run: int, fields: Mapping[str, Any]) -> bool:
    """Replace the results of these keys, and remove those that are None; return False if there is no room for them."""
    (stored,) = connection.execute("SELECT summary FROM run WHERE id = ?", (run,)).fetchone()
    results = {key: value for key, value in {**json.loads(stored), **fields}.items() if value is not None}
    text = to_json(results)
    if len(text) > MOST_BYTES:
        return False
    connection.execute("UPDATE run SET summary = ? WHERE id = ?", (text, run))
    return True
