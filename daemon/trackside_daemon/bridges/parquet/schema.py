"""The columns of the files, version 1; docs/fleet.md describes them. Only ever append columns."""

from __future__ import annotations

from typing import Any

from trackside_daemon.history.frames.optional_library import library

VERSION = 1


def schemas() -> dict[str, Any]:
    """Return the ``pyarrow.Schema`` of each kind of file."""
    arrow = library("pyarrow")
    text, number, integer = arrow.string(), arrow.float64(), arrow.int64()
    moment = arrow.timestamp("us", "UTC")
    cause = arrow.struct([("cause", text), ("summary", text), ("lost_seconds", number), ("gpu_hours", number)])
    fields = {
        "runs": {
            "version": arrow.int32(),
            "run": text,
            "name": text,
            "user": text,
            "host": text,
            "state": text,
            "cause": text,
            "started": moment,
            "ended": moment,
            "attempts": arrow.int32(),
            "ranks": arrow.int32(),
            "step": integer,
            "loss": number,
            "tags": arrow.list_(text),
            "config": text,
            "summary": text,
            "git_commit": text,
            "framework": text,
            "wall_seconds": number,
            "gpu_hours": number,
            "lost_gpu_hours": number,
            "energy_kwh": number,
            "ledger": arrow.map_(text, number),
            "causes": arrow.list_(cause),
        },
        "samples": {
            "run": text,
            "attempt": arrow.int32(),
            "rank": arrow.int32(),
            "key": text,
            "step": integer,
            "time": moment,
            "value": number,
        },
        "alerts": {
            "run": text,
            "alert": text,
            "severity": text,
            "started": moment,
            "ended": moment,
            "summary": text,
            "description": text,
            "labels": text,
        },
    }
    return {kind: arrow.schema(list(columns.items())) for kind, columns in fields.items()}
