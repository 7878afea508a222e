"""A checkpoint that is followed: the reports of it, when it is stable, and what an audit of it means."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from trackside_daemon.checkpoints.audit.files import is_usable
from trackside_daemon.checkpoints.audit.request import CHANGING, Audited, Listing
from trackside_daemon.model.checkpoint import (
    COMPLETE,
    DAMAGED,
    GONE,
    INT64,
    STATES,
    WRITING,
    Checkpoint,
    reported_step,
    shape_of,
)
from trackside_daemon.model.families import training as f
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.troubles import TROUBLES

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


class Reported(NamedTuple):
    """A checkpoint as an event of the training reports it."""

    path: str  # absolute
    step: int | None  # its step; None if unknown
    sequence: int  # as `Checkpoint.sequence`


def reported(fields: Mapping[str, Any], pushed: int | None, directory: str) -> Reported | None:
    """Return the checkpoint that an event reports; None if it names no file of a machine.

    Args:
        fields: The fields of the event.
        pushed: The step that was pushed last; None before the first.
        directory: The directory to which its path is relative; empty if that is unknown.
    """
    text, sequence = fields.get("path"), fields.get("sequence")
    if not isinstance(text, str) or "://" in text or not text:
        return None
    path = os.path.normpath(Path(directory) / text)
    if not path.startswith("/") or not is_usable(path):
        return None
    sequence = sequence if isinstance(sequence, int) and 0 < sequence < INT64 else 0
    return Reported(path, reported_step(fields, pushed), sequence)


class CheckpointWaits(NamedTuple):
    """Seconds that must pass before a checkpoint is judged."""

    settle: float = 3.0  # without a change, for one that the training or a file of it declares complete
    undeclared: float = 30.0  # likewise for another one
    confirm: float = 30.0  # from a first audit that finds damage to the one that decides
    absent: float = 600.0  # likewise for files that are missing of one that nothing declares complete
    scan: float = 10.0  # between two scans while nothing is written; *busy* while something is
    busy: float = 1.0
    missing: float = 5.0  # between the two scans that do not find a checkpoint


@dataclass
class Tracked:
    """A checkpoint. Times are monotonic seconds."""

    record: Checkpoint  # what is known of it
    quiet_since: float  # when its files changed last
    listing: Listing | None = None  # its files at the last scan; None before
    audited: int | None = None  # the fingerprint of the files that were audited last
    audited_at: float = 0.0  # when that was
    doubted_at: float | None = None  # when an audit first found the damage that is to be confirmed; None without one
    reported: bool = False  # the training has reported it since the last audit
    open: bool = False  # a rank has a file of it open for writing
    absent_since: float | None = None  # when a scan first did not find it
    changed: bool = False  # the record has to be published
    wanted: bool = False  # somebody asks for an audit
    relist: bool = False  # its entry in the directory has changed, so that its files have to be listed

    @property
    def counts(self) -> bool:
        """True if it is a checkpoint, by its files or by what the training reports."""
        return self.record.found == "event" or (self.listing is not None and bool(self.listing.format))

    @property
    def is_published(self) -> bool:
        """True if its record is for others to see: it is a checkpoint whose files have been listed."""
        return self.listing is not None and self.counts

    @property
    def series(self) -> tuple[str, str, str]:
        """Run, directory and shape of the name: the same for the checkpoints that follow each other."""
        path = Path(self.record.path)
        return self.record.run, str(path.parent), shape_of(path.name)

    def update(self, **changes: object) -> None:
        """Change the record."""
        record = replace(self.record, **changes)  # type: ignore[arg-type]
        if record != self.record:
            self.record, self.changed = record, True

    def write(self, now: float, *, reported: bool) -> None:
        """Note that the training writes it, or reports that it has."""
        self.quiet_since = now if not reported else self.quiet_since
        self.reported = self.reported or reported
        self.doubted_at = None
        if self.record.state != WRITING:
            self.audited = None
            self.update(state=WRITING, reason="", file="")

    def apply_scan(self, listing: Listing | None, now: float, wall: float, waits: CheckpointWaits) -> None:
        """Apply a scan: its files, or None if it does not exist."""
        if listing is None:
            self.absent_since = now if self.absent_since is None else self.absent_since
            if self.listing is not None and now - self.absent_since >= waits.missing:
                self.update(state=GONE, files=(), reason="", file="")
            return
        self.absent_since, self.relist = None, False
        if self.record.state == GONE:
            self.write(now, reported=False)
        known = self.audited if self.listing is None else self.listing.fingerprint
        if listing.fingerprint != known:
            self.quiet_since, self.doubted_at = now, None
            if not self.reported:
                self.update(time=self._written(listing, wall))
        self.listing = listing
        if self.record.state == WRITING:
            self.update(bytes=listing.bytes, format=listing.format)

    def _written(self, listing: Listing, wall: float) -> float:
        """Return when files were written that have changed, or are seen for the first time.

        The times of files are as right as their server's clock, so they count only where nothing else is known.
        """
        if self.listing is not None:
            return wall
        modified = listing.modified / 1e9
        return self.record.time if self.record.bytes else modified if 0 < modified < wall else wall

    def is_due(self, now: float, waits: CheckpointWaits, *, again: float, closed: bool) -> bool:
        """Return whether it should be audited now; *closed* if nobody can write it any more."""
        if self.listing is None or self.open or self.record.state == GONE or not self.counts:
            return False
        if self.audited == self.listing.fingerprint and self.doubted_at is None:
            return self.wanted or now - self.audited_at >= again
        declared = self.reported or self.listing.declared or closed or self.wanted
        if now - self.quiet_since < (waits.settle if declared else waits.undeclared):
            return False
        wait = waits.confirm if declared else waits.absent
        return self.doubted_at is None or closed or now - self.doubted_at >= wait

    def apply_audit(self, answer: Audited, now: float, wall: float, *, closed: bool) -> None:
        """Apply the result of an audit of the files of the last scan."""
        if answer.gone or self.listing is None or answer.unread == CHANGING:
            return
        first = self.audited is None and self.record.state == WRITING
        self.audited, self.audited_at, self.wanted = self.listing.fingerprint, now, False
        if answer.unread:
            self.update(state=COMPLETE, format=answer.format, reason=answer.unread, checked=None)
        elif answer.problem and first and not closed and self.doubted_at is None:
            self.doubted_at, self.audited = now, None
            return
        else:
            state = DAMAGED if answer.problem else COMPLETE
            self.update(state=state, format=answer.format, checked=wall, reason=answer.problem, file=answer.file)
            if not answer.problem:
                self.update(files=answer.files, bytes=sum(file.bytes for file in answer.files))
        self.doubted_at, self.reported = None, False
