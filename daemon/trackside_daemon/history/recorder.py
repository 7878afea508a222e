"""The history as the rest of the daemon sees it: takes batches, and knows what was kept of sessions and runs."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar

from trackside_daemon.history import time_accounting
from trackside_daemon.history.database import Database
from trackside_daemon.history.directory import UnreadableError, lock_history, network_file_system
from trackside_daemon.history.files.jsonl import JsonLines
from trackside_daemon.history.read import attempts, reader
from trackside_daemon.history.read.sessions import stored_session
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.model.records import ENDED, MachineSample, RunState, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping
    from pathlib import Path

    from trackside.wire import Identity
    from trackside_daemon.history.read.sessions import StoredSession
    from trackside_daemon.history.record.trimming import Bounds
    from trackside_daemon.model.metric import Batch, Sample
    from trackside_daemon.model.records import Alert, EarlierAttempts, Silence

LATEST = 10_000
"""So many runs' last attempts are remembered."""

T = TypeVar("T")
log = logging.getLogger("trackside")


class Recorder:
    """Owns the history in one directory.

    Args:
        directory: As `place.prepare` gave it.
        bounds: Of its size and age.
        synchronous: ``normal`` or ``full``: whether a commit waits for the disk.
        interval: Seconds between two samples that are kept of GPUs and host, while a run lives.
        machine: The sources that tell of GPUs and host.
        acknowledge: Told of each receipt once its batch is committed.
        request_resend: Told of a session whose unacknowledged messages have to come again, or None for all.
        hardware: Tells what this machine has.
        jsonl: Where everything is appended as JSON lines too; None for nowhere.

    Attributes:
        database: For those who read.
        writer: For those who change what is kept.

    Raises:
        HistoryError: It cannot be opened, or another daemon has it.
        OSError: The directory of the JSON lines cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        bounds: Bounds,
        *,
        synchronous: str = "normal",
        interval: float = 10.0,
        machine: Collection[str] = (),
        acknowledge: Callable[[Any], None] = lambda _: None,
        request_resend: Callable[[bytes | None], None] = lambda _: None,
        hardware: Callable[[], Mapping[str, Any]] = dict,
        jsonl: Path | None = None,
    ) -> None:
        self.interval = interval
        self._lock = lock_history(directory)
        remote = network_file_system(directory)
        if remote:
            log.warning(
                "%s is on %s, where a history is slow and at risk; better a local directory: --storage.path=%s",
                *(directory, remote, f"/var/tmp/trackside-{os.getuid()}"),  # noqa: S108  only named
            )
        try:
            self.database = Database(
                directory, exclusive=bool(remote) or not self._lock.supported, synchronous=synchronous
            )
        except BaseException:
            self._lock.close()
            raise
        self.writer = Writer(
            self.database,
            bounds,
            acknowledge=acknowledge,
            request_resend=request_resend,
            hardware=hardware,
            jsonl=None if jsonl is None else JsonLines(jsonl),
        )
        self._machine = frozenset(machine)
        self._sampled: dict[str, int] = {}
        self._attempts = threading.Lock()
        self._live: set[tuple[str, int]] = set()
        self._latest: OrderedDict[str, tuple[int, float | None]] = OrderedDict()
        self._unreadable = False
        self._abandoned: set[tuple[str, int]] = set()

    def start(self) -> None:
        """Begin to write."""
        self.writer.start()

    def stop(self) -> None:
        """Write and acknowledge what was taken; it can be read still."""
        self.writer.stop()

    def close(self) -> None:
        """Close the file, and let others have it."""
        self.database.close()
        self._lock.close()

    def accept(self, batch: Batch) -> None:
        """Keep what a batch says, later and in its own thread."""
        if batch.records or batch.receipt is not None:
            with self._attempts:
                for record in batch.records:
                    self._follow(record)
                self.writer.put([record for record in batch.records if not self._is_stale(record)], batch.receipt)
        elif batch.source in self._machine:
            self._sample(batch)

    def session(self, session: bytes) -> StoredSession | None:
        """What is kept of a client session.

        Raises:
            UnreadableError: Nobody can tell at the moment.
        """
        return self._look(lambda connection: stored_session(connection, session))

    def last_attempt(self, run: str) -> tuple[int, float | None] | None:
        """The number of a run's last attempt, and when it ended, None while it lives; also of what is not written yet.

        Raises:
            UnreadableError: Nobody can tell at the moment.
        """
        latest = self._latest.get(run)
        found = self._look(lambda connection: attempts.last_attempt(connection, run)) if latest is None else latest
        if found is None:
            return None
        return found[0], 0.0 if found[1] is None and (run, found[0]) in self._abandoned else found[1]

    def earlier_attempts(self, run: str, attempt: int) -> EarlierAttempts:
        """What is known of a run before an attempt.

        Raises:
            UnreadableError: Nobody can tell at the moment.
        """
        return self._look(lambda connection: time_accounting.earlier_attempts(connection, run, attempt))

    def firing(self, now: float) -> list[Alert]:
        """The alerts that fire as of *now*, in Unix seconds, by a daemon before this one; none if nobody can tell."""
        try:
            return self._look(lambda connection: reader.firing(connection, now))
        except UnreadableError:
            return []

    def ended(self, since: float, now: float) -> list[Alert]:
        """The alerts that have ended at *since*, in Unix seconds, or later, as of *now*; none if nobody can tell."""
        try:
            return self._look(lambda connection: reader.ended(connection, since, now))
        except UnreadableError:
            return []

    def silences(self, since: float) -> list[Silence]:
        """Those that lasted at *since*, in Unix seconds, or do later; none if nobody can tell."""
        try:
            return self._look(lambda connection: reader.silences(connection, since))
        except UnreadableError:
            return []

    def _look(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """What *look* finds."""
        try:
            with self.database.reading() as connection:
                found = look(connection)
        except (sqlite3.Error, ValueError) as error:
            if not self._unreadable:
                log.warning("%s cannot be read: %s", self.database.path, error)
            self._unreadable = True
            raise UnreadableError(str(error)) from error
        self._unreadable = False
        return found

    def abandon(self, is_gone: Callable[[Identity], bool], left: Container[bytes] = ()) -> list[tuple[Identity, float]]:
        """End, as lost, the attempts of a daemon before this one whose processes are all gone, and none has come back.

        Args:
            is_gone: Whether a process is.
            left: Sessions that have left a spool, which may say how they ended: their attempts are let be.

        Returns:
            The processes of those attempts, with the attempt's number, and when they were heard of last.
        """
        try:
            lost = self._look(lambda connection: self._gone(connection, is_gone, left))
        except UnreadableError:
            return []
        with self._attempts:  # one may have come back just now
            gone = {key: found for key, found in lost.items() if key not in self._live}
            self._abandoned |= gone.keys()  # whoever resumes one before it is written begins a new attempt all the same
            if gone:
                self.writer.put([RunState(*key, "lost", "", ended) for key, (_, ended) in gone.items()])
        for run, attempt in gone:
            log.warning("run id %s, attempt %d, is lost: its process is gone, and no daemon saw its end", run, attempt)
        return [(process, ended) for processes, ended in gone.values() for process in processes]

    def _gone(
        self, connection: sqlite3.Connection, is_gone: Callable[[Identity], bool], left: Container[bytes]
    ) -> dict[tuple[str, int], tuple[list[Identity], float]]:
        """Such attempts, their processes, and when something was last heard of them."""
        found: dict[tuple[str, int], list[Identity]] = {}
        waits = set(self._live | self._abandoned)
        for session, process in attempts.unended(connection):
            found.setdefault((process.run, process.attempt), []).append(process)
            if session in left:
                waits.add((process.run, process.attempt))
        return {
            key: (processes, attempts.last_time(connection, *key))
            for key, processes in found.items()
            if key not in waits and all(map(is_gone, processes))
        }

    def _follow(self, record: object) -> None:
        """Know which attempts live."""
        if isinstance(record, SessionOpened):
            late = record.hello.late
            if not late:
                self._lives((record.hello.identity.run, record.attempt))
            self._note(record.hello.identity.run, record.attempt, record.hello.clock.wall / 1e9 if late else None)
        elif isinstance(record, RunState) and record.late:
            self._latest.pop(record.run, None)  # what its ranks have said together is known when it is written
        elif isinstance(record, RunState):
            key = record.run, record.attempt
            self._note(*key, record.ended or 0.0 if record.state in ENDED else None)
            self._live.discard(key) if record.state in ENDED else self._lives(key)

    def _is_stale(self, record: object) -> bool:
        """Whether it is the end of a rank that comes late, of an attempt that lives."""
        return isinstance(record, RunState) and record.late and (record.run, record.attempt) in self._live

    def _note(self, run: str, attempt: int, ended: float | None) -> None:
        """Remember a run's last attempt until it is written, however long that takes."""
        known = self._latest.pop(run, None)
        self._latest[run] = (attempt, ended) if known is None or attempt >= known[0] else known
        if len(self._latest) > LATEST:
            self._latest.popitem(last=False)

    def _lives(self, key: tuple[str, int]) -> None:
        self._live.add(key)
        self._abandoned.discard(key)

    def _sample(self, batch: Batch) -> None:
        """Keep one batch of each source in each interval, while a run lives."""
        slot = int(batch.time // self.interval)
        if not self._live or self._sampled.get(batch.source) == slot:
            return
        self._sampled[batch.source] = slot
        values = {
            _written(sample): sample.value
            for sample in batch.samples
            if isinstance(sample.value, int | float) and sample.metric.kind in {"gauge", "counter"}
        }
        if values:
            self.writer.put([MachineSample(batch.time, values)])


def _written(sample: Sample) -> str:
    """A series as ``/metrics`` writes it."""
    pairs = sorted(zip(sample.metric.labels, sample.labels, strict=True))
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return f"{sample.metric.name}{{{labels}}}" if labels else sample.metric.name


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
