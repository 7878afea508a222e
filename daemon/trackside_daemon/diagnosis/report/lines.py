"""The lines of a report's charts: the runs that have a key share its chart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.diagnosis.report.tables import CELL, names
from trackside_daemon.model.text import cut, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS = ("axis", "last", "low", "high", "nonfinite", "ends")


def charts(reports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a chart per key of all runs: ``key`` and ``lines``, each with its ``label``, ``run`` (its place), and columns."""
    by_key: dict[str, list[dict[str, Any]]] = {}
    for place, (label, report) in enumerate(zip(names(reports), reports, strict=True)):
        several = len({entry["attempt"] for entry in report["charts"]}) > 1
        for entry in report["charts"]:
            name = f"{label}, attempt {entry['attempt']}" if several else label
            line = {column: entry[column] for column in COLUMNS if column in entry}
            by_key.setdefault(entry["key"], []).append({"label": cut(name, CELL), "run": place, **line})
    return [{"key": cut(shown(key), CELL), "lines": lines} for key, lines in by_key.items()]
