"""The history as the rest of the daemon uses it: accepts batches, and answers for sessions, runs and alerts."""

import logging
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Mapping
from pathlib import Path
from typing import Any, TypeVar

from trackside.wire import Identity
from trackside_daemon.history import time_accounting
from trackside_daemon.history.capture_rows import captures
from trackside_daemon.history.checkpoint_rows import StoredCheckpoint, recent_checkpoints
from trackside_daemon.history.database import Database
from trackside_daemon.history.directory import UnreadableError, network_file_system
from trackside_daemon.history.files.jsonl import JsonLines
from trackside_daemon.history.media.store import Quotas
from trackside_daemon.history.read import alert_reader, attempts
from trackside_daemon.history.read.attempts import StoredSession, stored_session
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.history.series_name import series_name
from trackside_daemon.model.capture import Capture
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import (
    ENDED,
    Alert,
    EarlierAttempts,
    MachineSample,
    RunState,
    SessionOpened,
    Silence,
)

MAX_LAST_ATTEMPTS = 10_000  # runs whose last attempt is cached
IDLE_SECONDS = 60.0  # between two stored samples of the machine without a live run

T = TypeVar("T")
log = logging.getLogger("trackside")


class HistoryRecorder:
    """The owner of the history in one directory.

    Args:
        directory: The directory that `directory.prepare` returned.
        bounds: Limits of size and age.
        synchronous: ``normal`` or ``full``: whether a commit waits for the disk.
        interval: Seconds between the stored samples of GPUs and host while a run is live; otherwise they are `IDLE_SECONDS` apart.
        machine: The batch sources of GPUs and host.
        acknowledge: Called with each receipt after its batch is committed.
        request_resend: Called with a session whose client has to send its unacknowledged messages again, or with None
            for all sessions.
        hardware: Describes this machine.
        jsonl: Directory to which all records are appended as JSON lines too; None for none.
        media: Quotas of images, texts and tables.

    Attributes:
        database: The file, for readers.
        writer: The writer, for changes.

    Raises:
        HistoryError: The history cannot be opened, or another daemon uses it.
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
        media: Quotas = Quotas(),  # noqa: B008  it is frozen
    ) -> None:
        self.interval = interval
        remote = network_file_system(directory)
        if remote:
            log.warning(
                "%s is on %s, where a history is slow and at risk; use a local directory instead: --storage.path=%s",
                directory,
                remote,
                f"/var/tmp/trackside-{os.getuid()}",  # noqa: S108  only a suggestion
            )
        self.database = Database(directory, synchronous=synchronous, serves=True)
        self.writer = Writer(
            self.database,
            bounds,
            acknowledge=acknowledge,
            request_resend=request_resend,
            hardware=hardware,
            jsonl=None if jsonl is None else JsonLines(jsonl),
            media=media,
        )
        self._machine = frozenset(machine)
        self._last_slots: dict[str, int] = {}
        self._ending: set[str] = set()
        # The last of each source that was not kept, since another of its interval was.
        self._between: dict[str, Batch] = {}
        self._attempts_lock = threading.Lock()
        self._live: set[tuple[str, int]] = set()
        self._last_attempts: OrderedDict[str, tuple[int, float | None]] = OrderedDict()
        self._unreadable = False
        self._abandoned: set[tuple[str, int]] = set()

    def start(self) -> None:
        """Start the writer."""
        self.writer.start()

    def stop(self) -> None:
        """Write and acknowledge what is queued, and stop the writer; reading is still possible."""
        self.writer.stop()

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def accept(self, batch: Batch) -> None:
        """Queue the records of a batch, or the samples of the machine, for the writer."""
        if batch.records or batch.receipt is not None:
            with self._attempts_lock:
                # Tracked before the commit: a resume that arrives meanwhile needs the last attempt now.
                for record in batch.records:
                    self._track(record)
                self.writer.put([record for record in batch.records if not self._is_stale(record)], batch.receipt)
        elif batch.source in self._machine:
            self._sample(batch)

    def session(self, session: bytes) -> StoredSession | None:
        """Return what the history has of a client session; None if it does not have it.

        Raises:
            UnreadableError: The history cannot be read at the moment.
        """
        return self._read(lambda connection: stored_session(connection, session))

    def last_attempt(self, run: str) -> tuple[int, float | None] | None:
        """Return number and end of a run's last attempt, also if it is not written yet; the end is None while it lives.

        Raises:
            UnreadableError: The history cannot be read at the moment.
        """
        last = self._last_attempts.get(run)
        if last is None:
            last = self._read(lambda connection: attempts.last_attempt(connection, run))
        if last is None:
            return None
        return last[0], 0.0 if last[1] is None and (run, last[0]) in self._abandoned else last[1]

    def run_owner(self, run: str) -> str | None:
        """Return the id of the `Owner` of a run, by its id, that is written; None if there is no such run.

        Raises:
            UnreadableError: The history cannot be read at the moment.
        """
        return self._read(lambda connection: attempts.run_owner(connection, run))

    def earlier_attempts(self, run: str, attempt: int) -> EarlierAttempts:
        """Return the losses, the highest step and the end of a run before an attempt.

        Raises:
            UnreadableError: The history cannot be read at the moment.
        """
        return self._read(lambda connection: time_accounting.earlier_attempts(connection, run, attempt))

    def firing(self, now: float) -> list[Alert]:
        """Return the alerts of an earlier daemon that fire at *now*, in Unix seconds; none if reading fails."""
        return self._read_all(lambda connection: alert_reader.firing(connection, now))

    def ended(self, since: float, now: float) -> list[Alert]:
        """Return the alerts that ended at *since*, in Unix seconds, or later, as of *now*; none if reading fails."""
        return self._read_all(lambda connection: alert_reader.ended(connection, since, now))

    def ends(self, run: str) -> list[attempts.AttemptEnd]:
        """Return how a run's last attempt and its ranks ended, as far as they have; none if reading fails."""
        return self._read_all(lambda connection: attempts.ends(connection, run))

    def captures(self) -> list[Capture]:
        """Return the captures of all runs, oldest first; none if reading fails."""
        return self._read_all(captures)

    def checkpoints(self, since: float) -> list[StoredCheckpoint]:
        """Return the checkpoints of runs that have not ended before *since*, in Unix seconds; none if reading fails."""
        return self._read_all(lambda connection: recent_checkpoints(connection, since))

    def silences(self, since: float) -> list[Silence]:
        """Return the silences that end after *since*, in Unix seconds; none if reading fails."""
        return self._read_all(lambda connection: alert_reader.silences(connection, since))

    def _read_all(self, query: Callable[[sqlite3.Connection], list[T]]) -> list[T]:
        """Return the rows of a query; none if reading fails."""
        try:
            return self._read(query)
        except UnreadableError:
            return []

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with self.database.reading() as connection:
                result = query(connection)
        except (sqlite3.Error, ValueError) as error:
            if not self._unreadable:
                log.warning("%s cannot be read: %s", self.database.path, error)
            self._unreadable = True
            raise UnreadableError(str(error)) from error
        self._unreadable = False
        return result

    def abandon(self, is_gone: Callable[[Identity], bool], left: Container[bytes] = ()) -> list[tuple[Identity, float]]:
        """End, as lost, the attempts of an earlier daemon whose processes are all gone and did not reconnect.

        Args:
            is_gone: Returns whether a process is gone.
            left: Sessions that left a spool, which may have their end: their attempts stay as they are.

        Returns:
            The processes of those attempts, and the Unix time of the last push of each attempt.
        """
        try:
            candidates = self._read(lambda connection: self._gone_attempts(connection, is_gone, left))
        except UnreadableError:
            return []
        with self._attempts_lock:  # a process may have reconnected just now
            gone = {key: attempt for key, attempt in candidates.items() if key not in self._live}
            self._abandoned |= gone.keys()  # a resume that comes before the write begins a new attempt, too
            if gone:
                self.writer.put([RunState(*key, "lost", "", ended) for key, (_, ended) in gone.items()])
        for run, attempt in gone:
            log.warning("run id %s, attempt %d, is lost: its process is gone, and no daemon saw its end", run, attempt)
        return [(process, ended) for processes, ended in gone.values() for process in processes]

    def _gone_attempts(
        self, connection: sqlite3.Connection, is_gone: Callable[[Identity], bool], left: Container[bytes]
    ) -> dict[tuple[str, int], tuple[list[Identity], float]]:
        """Return, by run and attempt, the processes of attempts that are gone, and the Unix time of their last push."""
        unended: dict[tuple[str, int], list[Identity]] = {}
        skipped = set(self._live | self._abandoned)
        for session, process in attempts.unended(connection):
            unended.setdefault((process.run, process.attempt), []).append(process)
            if session in left:
                skipped.add((process.run, process.attempt))
        return {
            key: (processes, attempts.last_time(connection, *key))
            for key, processes in unended.items()
            if key not in skipped and all(map(is_gone, processes))
        }

    def _track(self, record: object) -> None:
        """Update which attempts are live, and the last attempt of each run."""
        if isinstance(record, SessionOpened):
            late = record.hello.late
            if not late:
                self._set_live((record.session.run, record.session.attempt))
            ended = record.hello.clock.wall / 1e9 + record.offset if late else None
            self._cache_attempt(record.session.run, record.session.attempt, ended)
        elif isinstance(record, RunState) and record.late:
            self._last_attempts.pop(record.run, None)  # the end follows from all its ranks, when it is written
        elif isinstance(record, RunState):
            key = record.run, record.attempt
            self._cache_attempt(*key, record.ended or 0.0 if record.state in ENDED else None)
            if record.state in ENDED:
                self._live.discard(key)
                self._ending.update(self._machine)
                newest = max((batch.time for batch in self._between.values()), default=0.0)
                # The next may be long in coming, and the run's report does not wait.
                for batch in self._between.values():
                    if batch.time > newest - self.interval:
                        self._put_sample(batch)
                self._between.clear()
            else:
                self._set_live(key)

    def _is_stale(self, record: object) -> bool:
        """Return whether a record is a late end of a rank whose attempt is live."""
        return isinstance(record, RunState) and record.late and (record.run, record.attempt) in self._live

    def _cache_attempt(self, run: str, attempt: int, ended: float | None) -> None:
        """Cache a run's last attempt: it may take long until the attempt is written."""
        cached = self._last_attempts.pop(run, None)  # so that it moves to the end: the first one is forgotten
        self._last_attempts[run] = (attempt, ended) if cached is None or attempt >= cached[0] else cached
        if len(self._last_attempts) > MAX_LAST_ATTEMPTS:
            self._last_attempts.popitem(last=False)

    def _set_live(self, key: tuple[str, int]) -> None:
        if key not in self._live:
            self._last_slots.clear()
        self._live.add(key)
        self._abandoned.discard(key)

    def _sample(self, batch: Batch) -> None:
        """Queue one batch of each source per interval, or per minute without a live run; more when an attempt begins or ends."""
        slot = int(batch.time // (self.interval if self._live else max(self.interval, IDLE_SECONDS)))
        if batch.source not in self._ending and self._last_slots.get(batch.source) == slot:
            if self._live:
                self._between[batch.source] = batch
            return
        self._ending.discard(batch.source)
        self._between.pop(batch.source, None)
        self._last_slots[batch.source] = slot
        self._put_sample(batch)

    def _put_sample(self, batch: Batch) -> None:
        values = {
            series_name(sample.metric, sample.labels): sample.value
            for sample in batch.samples
            if isinstance(sample.value, int | float)
        }
        if values:
            self.writer.put([MachineSample(batch.time, values)])
