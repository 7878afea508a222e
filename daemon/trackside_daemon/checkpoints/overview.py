"""The checkpoints of a run as JSON: each with the value of a metric, and which has the best one."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import Any

from trackside_daemon.checkpoints.audit.files import fingerprint, listing
from trackside_daemon.history.checkpoint_rows import checkpoints
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.charts import Values
from trackside_daemon.history.read.reader import RunSeries
from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.model.checkpoint import COMPLETE, WRITING, Checkpoint, as_json
from trackside_daemon.model.metric import json_number

PRESENT = frozenset((WRITING, "unread", COMPLETE))  # states of those that may be loaded
LOGS = 64  # most ranks of an attempt whose samples that are not packed yet are searched


def overview(connection: sqlite3.Connection, uid: str, metric: str = "") -> dict[str, Any]:
    """Return the checkpoints of a run, by its id, oldest first.

    Args:
        connection: In a transaction.
        uid: The run's id.
        metric: A key; empty for the first that was reported with a checkpoint, else the loss.

    Returns:
        ``run``; ``metric``: the key; ``checkpoints``: with ``value``, that of the metric at the step of the checkpoint, as
        the attempt that wrote it pushed it, and ``fingerprint``, which changes with its files. One that was not read before
        its attempt and the daemon ended has the state ``unread``: nobody writes it any more.

    Raises:
        ValueError: A block is damaged.
    """
    records = checkpoints(connection, uid)
    over = connection.execute(
        "SELECT number FROM attempt JOIN run ON run.id = attempt.run WHERE uid = ? AND attempt.ended IS NOT NULL",
        (uid,),
    )
    ended = {number for (number,) in over}
    reported = next((name for record in records for name in sorted(record.metrics)), "")
    keys = [metric or reported] if metric or reported else list(LOSSES)
    series = list(_series(connection, uid, keys))
    key = next((one.series.key for one in series), keys[0])
    values = {one.attempt: Values(connection, one.series, one.tail) for one in series if one.series.key == key}
    return {
        "run": uid,
        "metric": key,
        "checkpoints": [
            {
                **as_json(record),
                **({"state": "unread"} if record.state == WRITING and record.attempt in ended else {}),
                "fingerprint": fingerprint(record.files),
                "value": _value(record, key, values),
            }
            for record in records
        ],
    }


def _series(connection: sqlite3.Connection, uid: str, keys: Sequence[str]) -> Iterator[RunSeries]:
    """Yield the series of each attempt, of its lowest rank that has one: the last stage of a pipeline pushes the loss."""
    packed = f"EXISTS (SELECT 1 FROM series WHERE stream = stream.id AND key IN ({', '.join('?' * len(keys))}))"  # noqa: S608
    rows = connection.execute(
        f"SELECT attempt, rank, {packed} FROM stream JOIN run ON run.id = run WHERE uid = ? ORDER BY attempt, rank",  # noqa: S608
        (*keys, uid),
    ).fetchall()
    for attempt, ranks in groupby(rows, itemgetter(0)):
        lowest, *others = [(rank, is_packed) for _, rank, is_packed in ranks]
        likely = [one for one in others if one[1]][:1]
        for rank, _ in (lowest, *likely, *others[:LOGS]):
            found = [one for one in reader.series(connection, uid, keys, [rank], attempt) if one.attempt == attempt]
            if found:
                yield from found
                break


def _value(record: Checkpoint, key: str, values: Mapping[int | None, Values]) -> Any:
    """Return the metric as it was reported with a checkpoint, else as its attempt pushed it last until its step."""
    if key in record.metrics:
        return json_number(record.metrics[key])
    if record.step is None or record.attempt not in values:
        return None
    # The attempt of one that only a scan has found is a guess.
    value = values[record.attempt].at(record.step, record.time, late=record.found == "event")
    return None if value is None else json_number(value)


def best(listed: Sequence[dict[str, Any]], *, highest: bool = False) -> dict[str, Any] | None:
    """Return the checkpoint on disk with the lowest or the highest value; None if none has a finite one."""
    rated = [
        one
        for one in listed
        if isinstance(one["value"], int | float) and isfinite(one["value"]) and one["state"] in PRESENT
    ]
    return (max if highest else min)(rated, key=lambda one: one["value"], default=None)


def first_usable(
    candidates: Iterable[Mapping[str, Any]], *, good: bool = True, here: bool = True
) -> tuple[str, list[str]]:
    """Return the path of the first checkpoint of `overview` that can be loaded, empty for none, and why others cannot.

    Args:
        candidates: The checkpoints in the order in which they are wanted.
        good: Only one that is intact. One that is not as it was audited is read now.
        here: Their files are those of this machine.
    """
    skipped: list[str] = []
    for one in candidates:
        if one["state"] == "gone" or (here and not os.path.exists(one["path"])):  # noqa: PTH110  of any error
            continue
        if not good or not (problem := _problem(one, here=here)):
            return one["path"], skipped
        skipped.append(f"{one['path']} is skipped: {problem}")
    return "", skipped


def _problem(one: Mapping[str, Any], *, here: bool) -> str:
    """Return why a checkpoint is not intact; empty if it is."""
    if not here:
        return "" if one["good"] else one["reason"] or "it is not audited yet"
    from trackside_daemon.checkpoints.audit.audit import audit
    from trackside_daemon.checkpoints.audit.request import AuditRequest

    path = Path(one["path"])
    if one["state"] in {"complete", "damaged"} and one["checked"] is not None:
        unchanged = one["good"] and fingerprint(listing(path)) == one["fingerprint"]
        if unchanged or one["state"] == "damaged":
            return str(one["reason"])
    result = audit(AuditRequest(str(path)))
    return result.problem or result.unread or ("it is gone" if result.gone else "")
