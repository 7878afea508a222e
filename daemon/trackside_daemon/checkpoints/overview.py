"""The checkpoints of a run as JSON: each with the value of a metric, and which has the best one."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from trackside_daemon.checkpoints.audit.files import fingerprint
from trackside_daemon.history.checkpoint_rows import checkpoints
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import LOSSES, Window
from trackside_daemon.model.checkpoint import as_json
from trackside_daemon.model.metric import json_number

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from trackside_daemon.history.read.reader import RunSeries
    from trackside_daemon.model.checkpoint import Checkpoint


def overview(connection: sqlite3.Connection, uid: str, metric: str = "") -> dict[str, Any]:
    """Return the checkpoints of a run, by its id, oldest first.

    Args:
        connection: In a transaction.
        uid: The run's id.
        metric: A key; empty for the first that was reported with a checkpoint, else the loss.

    Returns:
        ``run``; ``metric``: the key; ``checkpoints``: with ``value``, that of the metric at the step of the checkpoint, and
        ``fingerprint``, which changes with its files.

    Raises:
        ValueError: A block is damaged.
    """
    records = checkpoints(connection, uid)
    reported = next((name for record in records for name in sorted(record.metrics)), "")
    keys = [metric or reported] if metric or reported else list(LOSSES)
    series = list(reader.series(connection, uid, keys))
    key = next((one.series.key for one in series), keys[0])
    series = [one for one in series if one.series.key == key]
    return {
        "run": uid,
        "metric": key,
        "checkpoints": [
            {
                **as_json(record),
                "fingerprint": fingerprint(record.files),
                "value": _value(connection, record, key, series),
            }
            for record in records
        ],
    }


def _value(connection: sqlite3.Connection, record: Checkpoint, key: str, series: Sequence[RunSeries]) -> Any:
    """Return the metric as it was reported with a checkpoint, else as it was pushed last until its step; None without."""
    if key in record.metrics:
        return json_number(record.metrics[key])
    own = next((one for one in series if one.attempt == record.attempt), None)
    if own is None or record.step is None:
        return None
    points = chart(connection, own.series, own.tail, Window("step", -inf, record.step), 1).points
    return json_number(points[-1][4]) if points else None


def best(listed: Sequence[dict[str, Any]], *, highest: bool = False) -> dict[str, Any] | None:
    """Return the checkpoint on disk with the lowest or the highest value; None if none has a finite one."""
    rated = [
        one
        for one in listed
        if isinstance(one["value"], int | float) and isfinite(one["value"]) and one["state"] in {"writing", "complete"}
    ]
    return (max if highest else min)(rated, key=lambda one: one["value"], default=None)
