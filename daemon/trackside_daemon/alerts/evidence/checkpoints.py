"""The checkpoint to resume from after an alert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.history.checkpoint_rows import checkpoints

if TYPE_CHECKING:
    from trackside_daemon.alerts.evidence.sources import Case


def last_good_checkpoint(case: Case) -> dict[str, Any]:
    """Return the newest checkpoint that an audit has found intact and that was written before the alert."""
    if not case.alert.run:
        return {}
    with case.sources.history.reading() as connection:
        records = checkpoints(connection, case.alert.run)
    good = [record for record in records if record.good and record.time <= case.alert.started]
    if not good:
        return {}
    last = good[-1]
    age = max(0.0, case.alert.started - last.time)
    return {"checkpoint": {"path": last.path, "step": last.step, "age_seconds": round(age, 1), "bytes": last.bytes}}
