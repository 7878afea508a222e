"""Read what a table of runs can have as columns, of all runs at once: configurations, and values of keys."""

import json
import sqlite3
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from trackside_daemon.history.read.reader import MACHINE
from trackside_daemon.history.schema import BLOCK_BITS, HOST
from trackside_daemon.model.metric import json_number

MOST_KEYS = 1000  # keys that a table may choose from: those of the most runs
MOST_SERIES = 200_000  # series that are looked through for them

_LOWEST = "stream.rank = (SELECT min(rank) FROM stream AS other WHERE other.run = stream.run)"


def configurations(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the configuration of the last attempt that has one, by the id of the run."""
    rows = connection.execute(
        "SELECT run.uid, attempt.config FROM attempt JOIN run ON run.id = attempt.run "
        "WHERE attempt.config != '' AND NOT run.deleted ORDER BY attempt.number"
    )
    found = {}
    for uid, text in dict(rows).items():
        with suppress(ValueError):
            found[uid] = json.loads(text)
    return found


def values(connection: sqlite3.Connection, keys: Collection[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``last``, ``min`` and ``max`` of keys of each run's lowest rank, by the id of the run and the key.

    They are of the packed samples: those of a run that has just begun are missing. The last value is that of the last attempt.
    """
    places = ", ".join("?" * len(keys))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for uid, key, low, high, last in connection.execute(
        "SELECT run.uid, series.key, series.min, series.max, (SELECT ifnull(last, 'nan') FROM block WHERE block.id >= series.id << ? "  # noqa: S608
        "AND block.id < series.id + 1 << ? ORDER BY block.id DESC LIMIT 1) FROM run JOIN stream ON stream.run = run.id "
        f"JOIN series ON series.stream = stream.id AND series.key IN ({places}) "
        f"WHERE NOT run.deleted AND run.id != {HOST} AND {_LOWEST} ORDER BY stream.attempt",
        (BLOCK_BITS, BLOCK_BITS, *keys),
    ):
        before = found.setdefault(uid, {}).get(key, {})
        lows = [float(value) for value in (low, before.get("min")) if value is not None]
        highs = [float(value) for value in (high, before.get("max")) if value is not None]
        found[uid][key] = {
            "last": before.get("last") if last is None else json_number(float(last)),
            "min": json_number(min(lows)) if lows else None,
            "max": json_number(max(highs)) if highs else None,
        }
    return found


def keys(connection: sqlite3.Connection, most: int | None = MOST_KEYS) -> list[str]:
    """Return the keys that runs have pushed, those of the most runs first; at most so many, or None for all."""
    rows = connection.execute(
        f"SELECT series.key FROM series JOIN stream ON stream.id = series.stream WHERE stream.run != {HOST} AND {_LOWEST} LIMIT ?",  # noqa: S608
        (MOST_SERIES,),
    )
    counts = Counter(key for (key,) in rows if not key.startswith(MACHINE))
    return sorted(counts, key=lambda key: (-counts[key], key))[:most]
