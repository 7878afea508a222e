"""Report checkpoints: the alert about a damaged one, and the families of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.model.checkpoint import COMPLETE, DAMAGED, GONE, STATES, WRITING
from trackside_daemon.model.families import training as f
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.troubles import TROUBLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside_daemon.model.checkpoint import Checkpoint

ALERT = "CheckpointDamaged"

Firing = dict[tuple[str, str], Finding]
"""The findings that are open, by run and path."""


def findings(
    by_run: Mapping[str, Sequence[Checkpoint]], names: Mapping[str, str], firing: Firing, now: float
) -> Iterator[Finding]:
    """Yield the findings that begin and end, and update *firing*.

    A damaged checkpoint is no problem any more once a newer one is intact, or it is deleted.
    """
    damaged: set[tuple[str, str]] = set()
    for run, records in by_run.items():
        good = [record for record in records if record.good]
        hope = any(record.state in {WRITING, COMPLETE} for record in records)
        for record in records:
            if record.state != DAMAGED or any(one.order > record.order for one in good):
                continue
            key = run, record.path
            damaged.add(key)
            finding = _finding(record, names[run], good, hope, firing[key].time if key in firing else now)
            if firing.get(key) != finding:
                firing[key] = finding
                yield finding
    for key in firing.keys() - damaged:
        over = firing.pop(key)
        yield over._replace(time=now, over=True, summary=f"{key[1]} is gone, intact or replaced by a newer checkpoint")


def _finding(record: Checkpoint, run: str, good: Sequence[Checkpoint], hope: bool, since: float) -> Finding:
    """Return the finding about a damaged checkpoint; with *hope*, another one is intact or may be."""
    name = Path(record.path).name
    step = "" if record.step is None else f" of step {record.step:,}"
    last = good[-1] if good else None
    left = "no earlier one is known to be intact" if last is None else f"the last intact one is {last.path}"
    return Finding(
        ALERT,
        "warning" if hope else "critical",
        (("checkpoint", name), ("run", run)),
        since,
        f"run {run}: the checkpoint {name}{step} is damaged: {record.reason}",
        f"A training that loads it fails, or continues from wrong weights; {left}. {TROUBLES[ALERT].advice(run=run)}",
        run=record.run,
        evidence={"path": record.path, "file": record.file, "last_good": None if last is None else last.path},
    )


def samples(by_run: Mapping[str, Sequence[Checkpoint]], free: Mapping[tuple[str, str], int]) -> list[Sample]:
    """Return the families of runs, by name, given the free bytes in directories by the run's id and directory."""
    found = []
    for run, records in by_run.items():
        if not records:
            continue
        for state in STATES:
            if state != GONE:
                count = sum(record.state == state for record in records)
                found.append(Sample(f.STORED_CHECKPOINTS, (run, state), float(count)))
        good = [record for record in records if record.good]
        if good:
            found.append(Sample(f.LAST_GOOD_CHECKPOINT, (run,), good[-1].time))
        if good and good[-1].step is not None:
            found.append(Sample(f.LAST_GOOD_STEP, (run,), float(good[-1].step)))
        found += _room(run, records, free)
    return found


def _room(run: str, records: Sequence[Checkpoint], free: Mapping[tuple[str, str], int]) -> Iterator[Sample]:
    """Yield the size of the next checkpoint, which is that of the last one, and the share of it that fits."""
    last = next(
        (record for record in reversed(records) if record.state not in {WRITING, DAMAGED} and record.bytes), None
    )
    if last is None:
        return
    yield Sample(f.NEXT_CHECKPOINT_BYTES, (run,), float(last.bytes))
    place = str(Path(last.path).parent)
    if (last.run, place) in free:
        yield Sample(f.CHECKPOINT_ROOM, (run, place), free[last.run, place] / last.bytes)
