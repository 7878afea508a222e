"""The one thread that writes the history: group commits first, then a little packing and trimming between them.

What cannot be written, because the disk is full, waits here and is tried again each second. The queue is bounded; what
finds no room stays with the clients, whose messages are acknowledged only when they are committed.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from trackside_daemon.history.database import is_damage
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.record.packing import Packing
from trackside_daemon.history.record.queue import Call, Queue, QueueItem
from trackside_daemon.history.record.store import Store
from trackside_daemon.history.record.trimming import Trimming
from trackside_daemon.model.metric import Metric, Sample
from trackside_daemon.model.records import BatchIngested, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from trackside_daemon.history.database import Database
    from trackside_daemon.history.files.jsonl import JsonLines
    from trackside_daemon.history.record.trimming import Bounds
    from trackside_daemon.model.records import Record

SIZE = Metric("trackside_history_size_bytes", "gauge", "Size of the history's file and its WAL.", (), "bytes")
SAMPLES = Metric("trackside_history_samples_total", "counter", "Samples that were committed to the history.")
EXCESS = Metric(
    "trackside_history_excess_bytes",
    "gauge",
    "Bytes over storage.retention.size that pinned and live runs hold.",
    (),
    "bytes",
)

SLICE_SECONDS = 0.015
"""For so long packing or trimming goes on before it looks whether something waits to be written."""

BACKLOG_BYTES = 32 * 1024 * 1024
"""With so much of the log to be packed, what waits to be written gives way to it for a slice at a time."""

RETRY_SECONDS = 1.0
UNOPENED = 10_000
"""So many sessions are remembered that no table takes."""

TRIM_SECONDS = 5.0
"""How often it is looked whether the file is over its bounds."""

VALUE_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What is raised by numbers that no table takes, and by rows that make no sense."""

PERMANENT_ERRORS = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    *VALUE_ERRORS,
)
"""What says that a record cannot be written, ever."""

T = TypeVar("T")
log = logging.getLogger("trackside")


class Writer:
    """Writes what it is given, in order.

    Args:
        database: The file.
        bounds: Of its size and age.
        acknowledge: Told of each receipt once its records are committed.
        request_resend: Told of a session that is not known, or None for all since a new file has begun: what of it was not
            acknowledged has to come again.
        hardware: Tells what this machine has.
        jsonl: Also gets what was committed.
        clock: Tells the Unix time that bounds are judged by.

    Attributes:
        failures: Batches that could not be written at the first try, or not to the JSON lines.
        stuck: The disk takes nothing at the moment.
    """

    def __init__(
        self,
        database: Database,
        bounds: Bounds,
        *,
        acknowledge: Callable[[Any], None] = lambda _: None,
        request_resend: Callable[[bytes | None], None] = lambda _: None,
        hardware: Callable[[], Mapping[str, Any]] = dict,
        jsonl: JsonLines | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.failures = {"history": 0, "jsonl": 0}
        self.stuck = False
        self._database = database
        self._bounds = bounds
        self._acknowledge = acknowledge
        self._request_resend = request_resend
        self._hardware = hardware
        self._jsonl = jsonl
        self._clock = clock
        self._queue = Queue()
        self._unopened: set[bytes] = set()
        self._backlog = 0
        self._told: set[str] = set()
        self._began = 0.0
        self._samples = 0
        self._bytes = 0
        self._begin()
        self._thread = threading.Thread(target=self._run, name="trackside-history", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued, if the disk takes it, and end."""
        self._queue.stop()
        self._thread.join()
        self._queue.close()

    def put(self, records: Sequence[Record], receipt: Any = None) -> None:
        """Queue what belongs into one transaction. When there is no room, what was merely sampled or reckoned is left out."""
        self._queue.put(records, receipt)

    def has_room(self) -> bool:
        """Whether more may be queued: neither the queue nor the log that is to be packed is too long."""
        return self._queue.has_room and self._backlog < 2 * BACKLOG_BYTES

    def call(self, work: Callable[[Store], T]) -> Future[T]:
        """Have *work* done in a transaction of its own, after what is queued by now; cancelled after the end."""
        return self._queue.call(work)

    def flush(self, seconds: float) -> bool:
        """Wait for so long until what is queued by now is written; whether it is. Called from any thread but this."""
        with suppress(FutureTimeoutError, CancelledError, sqlite3.Error):
            self.call(lambda _: None).result(seconds)
            return True
        return False

    def samples(self) -> list[Sample]:
        """What the history tells of itself."""
        return [
            Sample(SIZE, (), self._bytes),
            Sample(SAMPLES, (), self._samples),
            Sample(EXCESS, (), self._trimming.excess),
        ]

    def busy_seconds(self) -> float:
        """Seconds that it has been at one turn, for ever while the disk takes nothing; 0 while it waits."""
        began = self._began
        return float("inf") if self.stuck else time.monotonic() - began if began else 0.0

    def set_bounds(self, bounds: Bounds) -> None:
        """Keep other bounds from now on."""
        self._bounds = self._trimming.bounds = bounds

    def _begin(self) -> None:
        with suppress(sqlite3.Error):  # a full disk: the half of a run whose import was cut off stays hidden
            self._database.connection.execute("UPDATE run SET deleted = 1 WHERE deleted = 2")
        self._store = Store(self._database.connection, self._hardware)
        self._trimming = Trimming(self._database.connection, self._database.path, self._bounds)
        self._packing: Packing | None = None
        self._trim_at = 0.0
        self._bytes = self._trimming.size()

    def _run(self) -> None:
        busy = goes_on = True
        while goes_on:
            try:
                busy, goes_on = self._turn(0.0 if busy else TRIM_SECONDS)
            except Exception as error:  # noqa: BLE001  the history is not worth the daemon's end
                self._stumbled(error)
        if self._jsonl is not None:
            self._jsonl.close()

    def _turn(self, patience: float) -> tuple[bool, bool]:
        """Write what waits, then tidy for a moment; whether there is more to tidy, and whether to go on at all."""
        self._began = 0.0
        group, call = self._queue.get(patience)
        self._began = time.monotonic()
        if group:
            self._commit(group)
        if call is not None:
            self._serve(call)
        if self._queue.stopping and not group and call is None:
            return False, False
        return self._tidy(), True

    def _stumbled(self, error: Exception) -> None:
        """Something that nobody foresaw: nothing of what was under way is acknowledged, and it comes again."""
        self.failures["history"] += 1
        if str(error) not in self._told:
            self._told = {str(error)}
            log.error("the history stumbled; it goes on, and further times are only counted", exc_info=error)
        self._undo()
        self._request_resend(None)
        self._queue.pause(RETRY_SECONDS)

    def _commit(self, group: list[QueueItem]) -> bool:
        """Write a group, however long the disk takes; only a damaged file, or the end, makes it give up."""
        batches = len(group)
        while True:
            try:
                with self._database.transaction():
                    kept, receipts, strange = self._apply(group)
                    self._store.write_progress()
            except PERMANENT_ERRORS as error:
                self._undo()
                return self._part(group, error)
            except sqlite3.Error as error:
                if not self._failed(error, batches):
                    return False
                batches = 0
            else:
                break
        self._recovered()
        self._samples += sum(map(_samples, kept))
        for receipt in receipts:
            self._acknowledge(receipt)
        for session in strange:
            self._request_resend(session)
        self._also(kept)
        return True

    def _apply(self, group: list[QueueItem]) -> tuple[list[Record], list[Any], set[bytes]]:
        """What of a group is kept, whom to tell, and the sessions that nobody opened: those are to greet and send again."""
        kept: list[Record] = []
        receipts = []
        strange: set[bytes] = set()
        for item in group:
            self._store.unknown_sessions.clear()
            kept += [record for one in item.records if (record := self._store.apply(one)) is not None]
            unknown = self._store.unknown_sessions - self._unopened
            strange |= unknown
            if item.receipt is not None and not unknown:
                receipts.append(item.receipt)
        return kept, receipts, strange

    def _part(self, group: list[QueueItem], error: Exception) -> bool:
        """Write the items of a group one by one; of one that no table takes, only that its messages came."""
        if len(group) > 1:
            return all(self._commit([item]) for item in group)
        (item,) = group
        unopened = {one.session for one in item.records if isinstance(one, SessionOpened)}
        if len(self._unopened) < UNOPENED:  # what it sends is lost, and asking it again would not help
            self._unopened |= unopened
        numbers = [BatchIngested(one.session, one.number) for one in item.records if isinstance(one, BatchIngested)]
        self.failures["history"] += 1
        log.error("a record cannot be written and is left out: %s: %s", type(error).__name__, error)
        return list(item.records) == numbers or self._commit([QueueItem(numbers, item.receipt, 0)])

    def _recovered(self) -> None:
        if self.stuck:
            self.stuck = False
            log.info("the history is written again")

    def _failed(self, error: sqlite3.Error, batches: int) -> bool:
        """Count and say it once; whether to try again, after a moment."""
        self._undo()
        if is_damage(error):
            self._replace(error)
            return False
        self.failures["history"] += batches
        if not self.stuck:
            self.stuck = True
            log.error("the history cannot be written: %s; clients keep their samples until it can", error)
        return self._queue.pause(RETRY_SECONDS)

    def _replace(self, error: Exception) -> None:
        """The file is damaged: begin a new one. Nothing of the queue is acknowledged, so the clients send it again."""
        self.failures["history"] += 1
        try:
            aside = self._database.set_aside().name
        except OSError as problem:
            aside = f"what it is, since it cannot be renamed ({problem})"
        log.error("%s was damaged (%s): it is kept as %s, and a new history begins", self._database.path, error, aside)
        self._renew()

    def _renew(self) -> None:
        """Go on with the file that is there, or a new one: who has not heard of a commit sends again."""
        self._queue.clear()
        while not self._begun():
            if not self._queue.pause(RETRY_SECONDS):
                return
        self._request_resend(None)

    def _begun(self) -> bool:
        """Begin a new file, if the disk takes one."""
        try:
            self._database.open_new()
        except HistoryError as error:
            if not self.stuck:
                self.stuck = True
                log.error("no new history can begin: %s; clients keep their samples until it can", error)  # noqa: TRY400  a disk's fault, no traceback
            return False
        self._begin()
        return True

    def _undo(self) -> None:
        self._store.reset()
        self._trimming.restart()
        self._packing = None

    def _serve(self, call: Call) -> None:
        future = call.future
        if not future.set_running_or_notify_cancel():
            return
        try:
            with self._database.transaction():
                result = call.work(self._store)
                self._store.write_progress()
        except Exception as error:  # noqa: BLE001  whoever asked gets it
            self._undo()
            future.set_exception(error)
        else:
            self._store.reset()
            self._trimming.restart()
            self._trim_at = 0.0
            future.set_result(result)

    def _tidy(self) -> bool:
        """Pack and trim for a moment; whether there is more to do."""
        self._backlog = self._store.backlog
        idle = self._packing is None and not self._store.due and time.monotonic() < self._trim_at
        if (idle and not self.stuck) or self._queue.stopping:
            return False
        try:
            if self._database.is_gone():
                self._database.close()
                log.error(
                    "%s was deleted or replaced under the daemon; what is there now is gone on with",
                    self._database.path,
                )
                self._renew()
                return True
            with self._database.transaction():
                until = time.monotonic() + SLICE_SECONDS
                more = True
                while more and time.monotonic() < until:
                    packs, trims = self._pack(), self._trim()
                    more = packs or trims
                    if self._queue and self._backlog < BACKLOG_BYTES and not trims:
                        break
            self._recovered()
            return more
        except ValueError as error:  # what was read makes no sense
            self._undo()
            self._replace(error)
        except sqlite3.Error as error:
            if self._failed(error, 0):
                return True
        return False

    def _pack(self) -> bool:
        if self._packing is None:
            stream = next(iter(self._store.due), None)
            if stream is None:
                return False
            self._packing = Packing(self._database.connection, stream)
        if not self._packing.step():
            self._store.mark_packed(self._packing.stream)
            self._packing = None
        return True

    def _trim(self) -> bool:
        if time.monotonic() < self._trim_at:
            return False
        self._bytes = self._trimming.size()
        deleted = self._trimming.deleted
        more = self._trimming.step(self._clock())
        if self._trimming.deleted != deleted:
            self._store.reset()
        if not more:
            self._trim_at = time.monotonic() + TRIM_SECONDS
        return more

    def _also(self, kept: Sequence[Record]) -> None:
        if self._jsonl is None or not kept:
            return
        try:
            self._jsonl.write(kept)
        except Exception as error:  # noqa: BLE001  whatever it is, the history has it
            if not self.failures["jsonl"]:
                log.error("JSON lines cannot be written: %s; further failures are only counted", error)  # noqa: TRY400  a disk's fault, no traceback
            self.failures["jsonl"] += 1


def _samples(record: Record) -> int:
    return sum(len(block.values) // 8 for block in record.blocks) if isinstance(record, BatchIngested) else 0
