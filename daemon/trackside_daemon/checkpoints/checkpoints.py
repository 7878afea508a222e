"""The checkpoints of the runs on this machine: found, audited, and published as records."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from trackside.checkpoints.file_names import checkpoint_of
from trackside_daemon.checkpoints.audit.files import fingerprint, is_usable
from trackside_daemon.checkpoints.audit.request import Audited, AuditRequest, Scanned, ScanRequest
from trackside_daemon.checkpoints.directories import Directories, RunsHere, Scans, written_files
from trackside_daemon.checkpoints.settings import CheckpointSection
from trackside_daemon.checkpoints.tracked import CheckpointWaits, Tracked, findings, reported, samples
from trackside_daemon.history.checkpoint_rows import StoredCheckpoint
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.checkpoint import COMPLETE, GONE, WRITING, Checkpoint, step_of
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.records import Event, RunState, SessionOpened

TICK_SECONDS = 1.0
MAX_CHECKPOINTS_OF_RUN = 256  # most checkpoints of a run that are followed, the newest ones
MAX_NOTICES = 10_000  # most records that wait for the thread
SCAN_SECONDS = 30.0  # the longest scan
MAX_SCANS = 16  # most scans of a tick, each of which may be waited for
PATIENCE_SECONDS = 0.1  # for this long
FOUND = "directory"  # `Checkpoint.found` of one that only a scan has found
AUDIT_SECONDS = 300.0  # the longest audit, in addition to the time that its rate needs
BACKOFF_SECONDS = 300.0  # for which a user whose audit failed lets others go first

log = logging.getLogger("trackside")


class CheckpointFollower:
    """Follows checkpoints in a thread of its own. As a finding source it only queues what concerns it.

    Args:
        section: The settings.
        boot: The boot id of this machine.
        processes: Returns the training processes of this machine.
        publish: Receives batches of records.
        auditing: Reads checkpoints; *scanning* lists directories.
        waits: How long to wait for what.
        clock: Monotonic clock, in seconds.
        wall: Unix time, in seconds.
        proc: Path of procfs.
    """

    def __init__(
        self,
        section: CheckpointSection,
        boot: str,
        processes: Callable[[], Iterable[RankProcess]],
        publish: Callable[[Batch], object],
        *,
        auditing: CallWorker[Audited],
        scanning: CallWorker[Scanned],
        waits: CheckpointWaits = CheckpointWaits(),  # noqa: B008  it is frozen
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        proc: Path = Path("/proc"),
    ) -> None:
        self._section, self._processes, self._publish = section, processes, publish
        self._auditing, self._scanning = auditing, scanning
        self._waits, self._clock, self._wall, self._proc = waits, clock, wall, proc
        self._notices: deque[Any] = deque(maxlen=MAX_NOTICES)
        self._findings: deque[Finding] = deque()
        self._runs = RunsHere(boot)
        self._directories = Directories(section.directories)
        self._tracked: dict[tuple[str, str], Tracked] = {}
        self._audited: Tracked | None = None
        self._turns: dict[int | None, float] = {}  # when each user's last audit began, or later if it failed
        self._scans = Scans()
        self._firing: dict[tuple[str, str], Finding] = {}
        self._page = Batch("checkpoints", complete=True)
        self._failures: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trackside-checkpoints", daemon=True)

    def restore(self, stored: Iterable[StoredCheckpoint]) -> None:
        """Continue with the checkpoints that an earlier daemon followed, oldest first."""
        now, wall = self._clock(), self._wall()
        for record, name, owner in stored:
            self._runs.restore(record.run, name, record.attempt, owner, now)
            one = self._tracked[record.run, record.path] = Tracked(record, now)
            if record.files:
                one.audited = fingerprint(record.files)
                one.audited_at = now - max(0.0, wall - (record.checked or wall))

    def start(self) -> None:
        """Start to follow."""
        if self._section.audit:
            self._thread.start()

    def stop(self) -> None:
        """End; an audit in progress begins anew with the next daemon."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def accept(self, batch: Batch) -> Sequence[Finding]:
        """Queue the records about checkpoints and runs, and return the findings since the last call."""
        for record in batch.records:
            is_checkpoint = isinstance(record, Event) and record.kind == "checkpoint"
            if is_checkpoint or isinstance(record, SessionOpened | RunState):
                self._notices.append(record)
        return [self._findings.popleft() for _ in range(len(self._findings))] if self._findings else ()

    def samples(self) -> Batch:
        """Return the families."""
        return self._page

    def audit_again(self, run: str) -> None:
        """Audit all checkpoints of a run, by its id, as soon as possible."""
        self._notices.append(run)

    def _run(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            try:
                self.tick()
            except Exception as error:  # whatever the files are like: the daemon goes on
                if self._is_new(f"{type(error).__name__}: {error}"):
                    log.exception("the checkpoints cannot be followed")
        self._auditing.end()
        self._scanning.end()

    def tick(self) -> None:
        """Do what is due; about once a second."""
        now, wall = self._clock(), self._wall()
        while self._notices:
            self._handle(self._notices.popleft(), now)
        self._runs.forget(now)
        self._tracked = {key: one for key, one in self._tracked.items() if self._runs.get(key[0])}
        self._find_open_files(now)
        self._scan(now, wall)
        self._audit(now, wall)
        self._report(wall)

    def _handle(self, notice: object, now: float) -> None:
        if isinstance(notice, SessionOpened):
            self._runs.open(notice)
        elif isinstance(notice, RunState):
            self._runs.end(notice, now)
        elif isinstance(notice, Event):
            self._handle_event(notice, now)
        else:
            for one in self._of(str(notice)):
                one.wanted = True

    def _handle_event(self, event: Event, now: float) -> None:
        run = self._runs.get(event.run)
        saved = None if run is None else reported(event.fields, event.step, run.directory or "/")
        if saved is None:
            return
        given = event.fields.get("metrics")
        numbers = given.items() if isinstance(given, dict) else ()
        metrics = {name: float(value) for name, value in numbers if _is_finite(value)}
        one = self._track(event.run, saved.path, "event")
        one.write(now, reported=True)
        one.update(
            attempt=event.attempt,
            step=saved.step,
            time=event.time,
            metrics=metrics,
            found="event",
            sequence=saved.sequence,
        )

    def _of(self, run: str) -> list[Tracked]:
        """Return the checkpoints of a run, oldest first."""
        own = [one for one in self._tracked.values() if one.record.run == run]
        return sorted(own, key=lambda one: one.record.order)

    def _track(self, run: str, path: str, found: str) -> Tracked:
        """Return the checkpoint of a path, which is followed from now on."""
        one = self._tracked.get((run, path))
        if one is None:
            here = self._runs.get(run)
            attempt = 0 if here is None else here.attempt
            record = Checkpoint(run, path, attempt, self._wall(), found, step=step_of(Path(path).name))
            one = self._tracked[run, path] = Tracked(record, self._clock())
            for old in self._of(run)[:-MAX_CHECKPOINTS_OF_RUN]:
                del self._tracked[run, old.record.path]
            self._scans.hurry(run)
            for other in self._others(run, path) if found != FOUND else ():
                self._withdraw(other)
        return one

    def _withdraw(self, one: Tracked) -> None:
        """Give up a checkpoint that a scan found, since another run writes it or reports it."""
        if one.record.found == FOUND:
            del self._tracked[one.record.run, one.record.path]
            one.update(state=GONE, files=(), reason="", file="")
            if one.is_published:
                self._publish(Batch("checkpoints", records=[one.record]))

    def _find_open_files(self, now: float) -> None:
        """Find what ranks write now."""
        written: dict[tuple[str, str], int] = {}
        for process in self._processes():
            if process.pid and self._runs.get(process.run_id):
                paths = map(checkpoint_of, written_files(process.pid, self._proc))
                named = (str(path) for path in paths if path is not None)
                written.update(((process.run_id, path), process.attempt) for path in named if is_usable(path))
        for key, attempt in written.items():
            self._track(*key, "open").update(attempt=attempt)
        for key, one in self._tracked.items():
            was, one.open = one.open, key in written
            if one.open or was:
                one.write(now, reported=False)

    def _scan(self, now: float, wall: float) -> None:
        """Scan the runs that are due, a request each, so that a file system that hangs stops the scans of its run only."""
        places = self._directories.places(self._tracked, self._runs.all())
        self._scans.keep(places)
        try:
            for _ in range(MAX_SCANS):
                answer = self._scanning.poll(PATIENCE_SECONDS)
                if answer is not None:
                    self._scans.succeed()
                    self._apply_scan(self._scans.current, answer, now, wall)
                if self._scanning.busy or (run := self._scans.next(now)) is None:
                    return
                self._begin_scan(run, places[run], now)
        except WorkerFailed as error:
            self._scans.fail(now)
            here = self._runs.get(self._scans.current)
            self._log_failure("scanned" if here is None else f"of the run {here.name} scanned", error)

    def _begin_scan(self, run: str, places: Iterable[str], now: float) -> None:
        followed = self._followed(run)
        busy = any(one.relist or (one.record.state == WRITING and one.counts) for one in followed)
        self._scans.begin(run, now + (self._waits.busy if busy else self._waits.scan))
        here = self._runs.get(run)
        paths = tuple(one.record.path for one in followed if self._is_listed(one))
        self._scanning.begin(ScanRequest(tuple(places), paths, None if here is None else here.uid), SCAN_SECONDS)

    def _apply_scan(self, run: str, answer: Scanned, now: float, wall: float) -> None:
        here = self._runs.get(run)
        if here is None:
            return
        for directory, entries in answer.places.items():
            for path in self._directories.update(directory, entries, run, here):
                if (run, path) in self._tracked or not any(self._others(run, path)):
                    self._track(run, path, FOUND).relist = True
        self._directories.free.update({(run, directory): count for directory, count in answer.free.items()})
        for one in self._followed(run):
            if one.record.path in answer.paths:
                one.apply_scan(answer.paths[one.record.path], now, wall, self._waits)

    def _followed(self, run: str) -> list[Tracked]:
        return [one for one in self._tracked.values() if one.record.run == run and one.record.state != GONE]

    def _others(self, run: str, path: str) -> Iterator[Tracked]:
        """Yield the checkpoint of a path as other runs of the same user have it."""
        here = self._runs.get(run)
        for other, one in self._runs.all().items():
            if other != run and here is not None and one.uid == here.uid and (other, path) in self._tracked:
                yield self._tracked[other, path]

    def _is_listed(self, one: Tracked) -> bool:
        """Return whether the files of a checkpoint are listed at the next scan, and not only its directory."""
        if one.listing is not None and not one.counts:  # some other folder
            return one.relist
        known = one.record.state == COMPLETE and self._directories.has(one.record.run, one.record.path)
        return one.relist or one.wanted or not known

    def _audit(self, now: float, wall: float) -> None:
        try:
            answer = self._auditing.poll()
            if answer is not None:
                self._judge(answer, now, wall)
            if self._auditing.busy:
                return
            one = self._audited = self._next_audit(now)
            if one is not None:
                seconds = AUDIT_SECONDS + 2 * one.record.bytes / (self._section.rate_mb * 1e6)
                self._auditing.begin(self._request(one), seconds)
        except WorkerFailed as error:
            if self._audited is not None:
                self._turns[self._user(self._audited)] = now + BACKOFF_SECONDS
            self._judge(Audited(unread=f"the process that reads it failed: {error}"), now, wall)
            self._log_failure("read", error)

    def _next_audit(self, now: float) -> Tracked | None:
        """Return the checkpoint to audit: the newest of the user whose turn was longest ago; None if none is due."""
        due = (one for one in self._tracked.values() if self._is_due(one, now))
        chosen = max(due, key=lambda one: (-self._turns.get(self._user(one), 0.0), one.record.order), default=None)
        if chosen is not None:
            self._turns[self._user(chosen)] = now
        return chosen

    def _user(self, one: Tracked) -> int | None:
        run = self._runs.get(one.record.run)
        return None if run is None else run.uid

    def _judge(self, answer: Audited, now: float, wall: float) -> None:
        one, self._audited = self._audited, None
        if one is not None:
            one.apply_audit(answer, now, wall, closed=self._is_closed(one, now))

    def _is_due(self, one: Tracked, now: float) -> bool:
        return one.is_due(now, self._waits, again=self._section.again, closed=self._is_closed(one, now))

    def _is_closed(self, one: Tracked, now: float) -> bool:
        """Return whether nobody writes a checkpoint any more: its attempt has ended, or a later one is intact."""
        over = self._runs.is_over(one.record.run, one.record.attempt, now)
        return over or any(other.order > one.record.order for other in self._good(one))

    def _good(self, one: Tracked) -> list[Checkpoint]:
        """Return the intact checkpoints of the same series."""
        every = (other.record for other in self._tracked.values() if other.series == one.series and other is not one)
        return [record for record in every if record.good]

    def _request(self, one: Tracked) -> AuditRequest:
        record, run = one.record, self._runs.get(one.record.run)
        earlier = [other for other in self._good(one) if other.order < record.order and other.attempt == record.attempt]
        previous = max(earlier, key=lambda other: other.order, default=None)
        return AuditRequest(
            record.path,
            record.bytes,
            rate=self._section.rate_mb * 1e6,
            uid=None if run is None else run.uid,
            values=self._section.values,
            rewritten=record.state == WRITING,
            before=record.files,
            previous={} if previous is None else {file.name: file.bytes for file in previous.files},
        )

    def _log_failure(self, what: str, error: WorkerFailed) -> None:
        if self._is_new(what):
            log.warning("checkpoints cannot be %s: %s; further failures are not logged", what, error)

    def _is_new(self, failure: str) -> bool:
        is_new = failure not in self._failures and len(self._failures) < 16
        self._failures.add(failure)
        return is_new

    def _report(self, wall: float) -> None:
        """Publish what has changed."""
        changed = [one for one in self._tracked.values() if one.changed and one.is_published]
        for one in changed:
            one.changed = False
        if changed:
            self._publish(Batch("checkpoints", records=[one.record for one in changed]))
        runs = self._runs.all()
        names = {id_: run.name for id_, run in runs.items()}
        by_run = {id_: [one.record for one in self._of(id_)] for id_ in names}
        self._findings.extend(findings(by_run, names, self._firing, wall))
        alive = {run.name: by_run[id_] for id_, run in runs.items() if run.ended is None}
        self._page = Batch("checkpoints", samples(alive, self._directories.free), complete=True)


def _is_finite(value: object) -> bool:
    """Return whether a value of an event is a number that JSON and a float can hold."""
    try:
        return isinstance(value, int | float) and isfinite(value)
    except OverflowError:
        return False
