"""The difference of two profiles of a run: what became slower or faster beyond the noise of the steps."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from trackside_daemon.captures.summary.parts import PARTS
from trackside_daemon.captures.summary.tables import ROWS, percentiles
from trackside_daemon.model.text import duration

STEPS = 4  # fewer of them do not show their noise
RELEVANT = 0.05  # share of a step below which a change explains nothing
TABLES = ("operators", "functions")

Row = dict[str, Any]


def difference(reference: Mapping[str, Any], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what changed between two summaries of a run, the largest change first.

    A change must leave the range of the reference's steps and be larger than the ranges of both: the noise within each
    profile decides. It is that of the median step: one step in which another process interrupts an operator changes a mean.
    What all operators have in common, a machine that is slower as a whole, is no change.

    Returns:
        For each change its ``text``, ``name``, ``kind`` (``part``, ``operator`` or ``function``), ``rank``, ``source``, and
        ``before`` and ``after`` in seconds per step.
    """
    largest: dict[str, dict[str, Any]] = {}
    for rank in reference["ranks"].keys() & summary["ranks"].keys():
        for change in _changes(reference["ranks"][rank], summary["ranks"][rank]):
            known = largest.get(change["name"])
            if known is None or _size(change) > _size(known):
                largest[change["name"]] = {**change, "rank": int(rank)}
    named = [change for change in largest.values() if change["kind"] != "part"]
    parts = [change for change in largest.values() if change["kind"] == "part" and not _explained(change, named)]
    return sorted(named + parts, key=_size, reverse=True)


def _explained(part: Mapping[str, Any], named: list[dict[str, Any]]) -> bool:
    """Return whether an operator or a function grew by about as much as a part of the step."""
    grown = part["after"] - part["before"]
    return any(abs(change["after"] - change["before"] - grown) < abs(grown) / 4 for change in named)


def _size(change: Mapping[str, Any]) -> float:
    return abs(float(change["after"] - change["before"]))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if min(len(before["steps"]), len(after["steps"])) < STEPS:
        return
    scale = _scale(before, after)
    step = statistics.median(one["seconds"] for one in before["steps"])
    for kind, old, new in _pairs(before, after):
        if not _changed(old, new, scale, step):
            continue
        source = new.get("source") or old.get("source", "")
        name = old["name"] or new["name"]
        place = f", {source}" if source and source != name else ""
        text = f"{name} {duration(old['median'])} → {duration(new['median'])} a step{place}"
        yield {
            "text": text,
            "name": name,
            "kind": kind,
            "source": source,
            "before": old["median"],
            "after": new["median"],
        }


def _changed(old: Row, new: Row, scale: float, step: float) -> bool:
    low, high = old["low"] * scale, old["high"] * scale
    apart = max(new["low"] - high, low - new["high"])
    noise = max(high - low, new["high"] - new["low"])
    change = abs(new["median"] - old["median"] * scale)
    return bool(apart > 0 and change > noise and change > RELEVANT * step)


def _pairs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Row, Row]]:
    """Return the rows that both summaries have, or one."""
    for part in PARTS:
        yield "part", _part(before, part), _part(after, part)
    for table in TABLES:
        if before[table] and after[table]:
            old, new = _rows(before[table]), _rows(after[table])
            for name in {**old, **new}:
                yield table[:-1], old.get(name) or _absent(name, old), new.get(name) or _absent(name, new)


def _absent(name: str, rows: Mapping[str, Row]) -> Row:
    """Return a row for what is not among the largest: it has no time, or at most as much as the smallest of a full table."""
    most = min(row["high"] for row in rows.values()) if len(rows) >= ROWS else 0.0
    return {"name": name, "low": 0.0, "median": most / 2, "high": most}


def _rows(table: list[Row]) -> dict[str, Row]:
    return {row["name"]: row for row in table}


def _part(profile: Mapping[str, Any], part: str) -> Row:
    low, middle, high = percentiles([step[part] for step in profile["steps"]])
    return {"name": part, "low": low, "median": middle, "high": high}


def _scale(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Return how much slower the operators are in common: the median of the large ones."""
    old, new = _rows(before["operators"]), _rows(after["operators"])
    large = [name for name in old.keys() & new.keys() if old[name]["share"] > 0.01 and old[name]["median"] > 0]
    return statistics.median([new[name]["median"] / old[name]["median"] for name in large]) if len(large) > 4 else 1.0
