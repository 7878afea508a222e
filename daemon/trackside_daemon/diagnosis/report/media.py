"""Images, texts and tables of runs in a report: some steps of each series, the first and the newest among them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trackside_daemon.history.files import media_lines
from trackside_daemon.history.media import index

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

SERIES = 24  # most series of a run
STEPS = 12  # most steps of a series
SIZE = 4_000_000  # most bytes of a run's media


def read(connection: sqlite3.Connection, run: str, size: int = SIZE) -> list[dict[str, Any]]:
    """Return the series of a run: ``kind``, ``key``, ``rank``, ``count``, and ``items`` with ``step`` and ``data``."""
    history = index.history_of(connection)
    series: dict[tuple[str, str, int], list[index.MediaFile]] = {}
    for item in index.read(history, run):
        series.setdefault((item.kind, item.key, item.rank), []).append(item)
    found = []
    for (kind, key, rank), items in list(series.items())[:SERIES]:
        drawn = []
        for item in _spread(items):
            if item.bytes > size:
                continue
            with suppress(OSError, ValueError):
                data = media_lines.shown(kind, index.content(history, run, item))
                drawn.append({"step": item.step, "data": data, "width": item.width, "height": item.height})
                size -= item.bytes
        if drawn:
            found.append({"kind": kind, "key": key, "rank": rank, "count": len(items), "items": drawn})
    return found


def _spread(items: Sequence[index.MediaFile]) -> list[index.MediaFile]:
    """Return at most `STEPS` items at equal distances."""
    if len(items) <= STEPS:
        return list(items)
    return [items[round(place * (len(items) - 1) / (STEPS - 1))] for place in range(STEPS)]
