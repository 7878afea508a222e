"""Write the history in one thread: group commits first, then some packing and trimming between them.

If the disk is full or there is no file, the batches wait in the queue and the writer tries again each second. The queue is
bounded. What does not fit stays with the clients, whose messages are acknowledged only after the commit.
"""

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar

from trackside.log_once import LogOnce
from trackside_daemon.history.database import Database, is_damage
from trackside_daemon.history.directory import HistoryError, SalvagingError
from trackside_daemon.history.files.jsonl import JsonLines
from trackside_daemon.history.media.store import MediaStore, Quotas
from trackside_daemon.history.record.maintenance import BACKLOG_BYTES, Maintenance, WriterIntervals
from trackside_daemon.history.record.queue import OwnTransaction, Queue, QueueItem
from trackside_daemon.history.record.store import RecordStore
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.records import BatchIngested, Record, SessionOpened

SALVAGE_SECONDS = 0.2  # longest wait for a new file at once


MAX_REFUSED_SESSIONS = 10_000  # sessions to remember whose rows no table accepts

# Errors of numbers that no column holds, and of malformed rows.
VALUE_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError)

# Errors of records that can never be written.
PERMANENT_ERRORS = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    *VALUE_ERRORS,
)

T = TypeVar("T")
log = logging.getLogger("trackside")


class Writer:
    """The thread that writes records, those of each owner in their order.

    Args:
        database: The file.
        bounds: Limits of its size and age.
        acknowledge: Called with each receipt after its records are committed.
        request_resend: Called with a session that the tables do not have, or with None for all sessions: the client has
            to send its unacknowledged messages again.
        hardware: Describes this machine.
        jsonl: Also gets the committed records.
        media: Quotas of images, texts and tables.
        clock: Returns the Unix time.
        queue: The queue; None for one of its own.
        intervals: See `WriterIntervals`.

    Attributes:
        failures: Counts of batches that were not written at the first try, and not written to the JSON lines.
        stuck: Nothing can be written at the moment.
        problem: Why not; empty while it can.
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
        media: Quotas = Quotas(),  # noqa: B008  it is frozen
        clock: Callable[[], float] = time.time,
        queue: Queue | None = None,
        intervals: WriterIntervals = WriterIntervals(),  # noqa: B008  it is a constant
    ) -> None:
        self.failures = {"history": 0, "jsonl": 0}
        self.stuck = False
        self.problem = ""
        self._database = database
        self._bounds = bounds
        self._acknowledge = acknowledge
        self._request_resend = request_resend
        self._hardware = hardware
        self._jsonl = jsonl
        self._media = MediaStore(database.path.parent, media)
        self._clock = clock
        self._queue = Queue() if queue is None else queue
        self._intervals = intervals
        self._refused_sessions: set[bytes] = set()
        self._logged = LogOnce()
        self._began = 0.0
        self._samples = 0
        self._counted_at = self._replaced_at = -math.inf
        self._store: RecordStore  # once the file is open
        self._maintenance: Maintenance | None = None
        database.found_damage = self._queue.wake
        if database.is_open:
            self._begin()
        else:
            self._fail(database.problem, 1)
        self._thread = threading.Thread(target=self._run, name="trackside-history", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued, if the disk accepts it, and end the thread."""
        self._queue.stop()
        self._thread.join()
        self._queue.close()  # nobody would answer a later call

    def put(self, records: Sequence[Record], receipt: Any = None) -> None:
        """Queue the records of one transaction; drop them if the queue is full and they are mere samples or accounts."""
        self._queue.put(records, receipt)

    def has_room(self) -> bool:
        """Return whether more may be queued: neither the queue nor the unpacked log is too long."""
        return self._queue.has_room and (self._maintenance is None or self._maintenance.backlog < 2 * BACKLOG_BYTES)

    def call(self, work: Callable[[RecordStore], T]) -> Future[T]:
        """Queue work for a separate transaction, after what is queued now; after `stop` its future is cancelled."""
        return self._queue.call(work)

    def flush(self, timeout: float) -> bool:
        """Wait until what is queued now is written, at most *timeout* seconds; call it from any other thread."""
        with suppress(FutureTimeoutError, CancelledError, sqlite3.Error):
            self.call(lambda _: None).result(timeout)
            return True
        return False

    def samples(self) -> list[Sample]:
        """Return the metrics of the history itself."""
        size, excess = (0, 0) if self._maintenance is None else (self._maintenance.size, self._maintenance.excess)
        return [
            Sample(daemon.HISTORY_SIZE, (), size),
            Sample(daemon.HISTORY_SAMPLES, (), self._samples),
            Sample(daemon.HISTORY_EXCESS, (), excess),
        ]

    def busy_seconds(self) -> float:
        """Return the seconds since the current turn began: 0 while the thread waits, infinity while the disk is stuck."""
        began = self._began
        return float("inf") if self.stuck else time.monotonic() - began if began else 0.0

    def set_bounds(self, bounds: Bounds) -> None:
        """Change the limits of size and age."""
        self._bounds = bounds
        if self._maintenance is not None:
            self._maintenance.set_bounds(bounds)

    def _begin(self) -> None:
        with suppress(sqlite3.Error):  # a full disk: a run whose import was interrupted stays hidden
            self._database.connection.execute("UPDATE run SET deleted = 1 WHERE deleted = 2")
        self._store = RecordStore(self._database.connection, self._hardware, self._media)
        self._maintenance = Maintenance(self._database, self._store, self._bounds, trim_seconds=self._intervals.trim)

    def _run(self) -> None:
        has_work = running = True
        while running:
            try:
                has_work, running = self._turn(0.0 if has_work else self._intervals.trim)
            except Exception as error:  # noqa: BLE001  the daemon must not end because of the history
                self._recover(error)
        if self._jsonl is not None:
            self._jsonl.close()

    def _turn(self, timeout: float) -> tuple[bool, bool]:
        """Write what waits, then pack and trim; return whether more packing or trimming is due, and False at the end."""
        self._began = 0.0  # the watchdog does not count waiting
        if not self._is_usable() and not self._restore():
            return False, False
        group, call = self._queue.get(timeout)
        self._began = time.monotonic()
        if group and not self._commit(group):
            if call is not None:
                call.future.cancel()
            return False, False  # messages that are queued behind it must not be stored without it
        if call is not None:
            self._run_call(call)
        if self._queue.stopping and not group and call is None:
            return False, False
        return self._maintain(), True

    def _recover(self, error: Exception) -> bool:
        """Continue after an unexpected error; the clients send again what was not acknowledged. Return False at the end."""
        self.failures["history"] += 1
        if self._logged.first("", str(error)):
            log.error("the history writer failed and continues; the same failure is only counted now", exc_info=error)
        self._undo()
        self._request_resend(None)
        return self._queue.pause(self._intervals.retry)

    def _commit(self, group: list[QueueItem]) -> bool:
        """Write a group, and retry while it cannot be written; return False if the writer stops before."""
        batches, is_repeated = len(group), False
        while True:
            try:
                with self._database.transaction():
                    stored, receipts, unknown_sessions = self._apply(group)
                    self._store.write_progress()
            except PERMANENT_ERRORS as error:
                self._undo()
                return self._commit_one_by_one(group, error)
            except Exception as error:  # noqa: BLE001  what is queued behind a message must not be stored without it
                passes = isinstance(error, (OSError, MemoryError, sqlite3.Error))
                goes_on = self._handle_failure(error, batches) if passes else self._recover(error) or not is_repeated
                # What fails again alone is dropped, except for its number: where that fails, too, the fault is not its own.
                if not passes and (len(group) > 1 or (is_repeated and any(item.size for item in group))):
                    return self._commit_one_by_one(group, error)
                if not goes_on:
                    return False
                batches, is_repeated = 0, not passes  # counted once, however often it is tried
                continue
            if not (self._database.damage or self._database.is_gone()):
                break
            # What is stored in a damaged file may be lost, or salvaged: only messages are not stored twice.
            group = [item for item in group if item.receipt is not None or not self._database.damage]
            if not self._continue_elsewhere():
                return False
        self._clear_stuck()
        self._samples += sum(map(_sample_count, stored))
        # Only now: what a client was acknowledged must survive a crash of the daemon.
        for receipt in receipts:
            self._acknowledge(receipt)
        for session in unknown_sessions:
            self._request_resend(session)
        self._write_jsonl(stored)
        return True

    def _apply(self, group: list[QueueItem]) -> tuple[list[Record], list[Any], set[bytes]]:
        """Write a group; return the stored records, the receipts to acknowledge, and the sessions that have to resend."""
        stored: list[Record] = []
        receipts = []
        unknown_sessions: set[bytes] = set()
        for item in group:
            self._store.unknown_sessions.clear()
            for record in item.records:
                if (cleaned := self._store.apply(record)) is not None:
                    stored.append(cleaned)
                elif item.receipt is not None:
                    break  # the message is stored already, or comes again, and so do the events in it
            unknown = self._store.unknown_sessions - self._refused_sessions
            unknown_sessions |= unknown
            if item.receipt is not None and not unknown:
                receipts.append(item.receipt)
        return stored, receipts, unknown_sessions

    def _commit_one_by_one(self, group: list[QueueItem], error: Exception) -> bool:
        """Write the items of a group one by one; of an item that cannot be written, only the message numbers."""
        if len(group) > 1:
            return all(self._commit([item]) for item in group)
        (item,) = group
        # Their samples are lost; a resend would not help.
        if isinstance(error, PERMANENT_ERRORS) and len(self._refused_sessions) < MAX_REFUSED_SESSIONS:
            self._refused_sessions |= {
                record.session.id for record in item.records if isinstance(record, SessionOpened)
            }
        numbers = [
            BatchIngested(record.session, record.number) for record in item.records if isinstance(record, BatchIngested)
        ]
        self.failures["history"] += 1
        log.error("a record cannot be written and is dropped: %s: %s", type(error).__name__, error)
        return list(item.records) == numbers or self._commit([QueueItem(numbers, item.receipt, 0)])

    def _clear_stuck(self) -> None:
        if self.stuck:
            self.stuck, self.problem = False, ""
            log.info("the history can be written again")

    def _fail(self, text: str, batches: int) -> None:
        """Count a failure, and again while it lasts; log the first one."""
        if not self.stuck:
            self.stuck = True
            log.error("the history cannot be written: %s; clients keep their samples until it can", text)
        self.problem = text
        now = time.monotonic()
        if batches or now - self._counted_at >= self._intervals.recount:
            self.failures["history"] += max(1, batches)
            self._counted_at = now

    def _handle_failure(self, error: Exception, batches: int) -> bool:
        """Count a failure, and pause, or replace a damaged file; return whether to try again."""
        self._undo()
        if is_damage(error):
            self._database.report(str(error))
        if not self._is_usable():
            return self._restore()
        if self._database.is_gone():
            return self._continue_elsewhere()
        self._fail(str(error) or repr(error), batches)
        return self._queue.pause(self._intervals.retry)

    def _is_usable(self) -> bool:
        self._database.poll()
        return self._database.is_open and not self._database.damage

    def _continue_elsewhere(self) -> bool:
        """Continue with the file that is there now, or a new one; return False if the writer stops before."""
        if not self._database.damage:
            text = "%s was deleted or replaced while the daemon ran; it continues with the file that is there now"
            log.error(text, self._database.path)
        return self._restore()

    def _restore(self) -> bool:
        """Open the file anew, as soon as that is possible; return False if the writer stops before.

        A damaged one is replaced by a new one, and the clients send again what was not acknowledged.
        """
        if self._database.damage:
            self.failures["history"] += 1
            if not self._queue.pause(max(0.0, self._replaced_at + self._intervals.replace - time.monotonic())):
                return False
            self._replaced_at = time.monotonic()
        while not self._open():
            if not self._queue.pause(self._intervals.retry):
                return False
        self._request_resend(None)
        return True

    def _open(self) -> bool:
        try:
            self._database.reopen(SALVAGE_SECONDS)
            self._begin()
        except SalvagingError as error:
            self.stuck, self.problem = True, str(error)  # the log has that a file was damaged
        except HistoryError as error:
            self._fail(str(error), 0)
        except sqlite3.Error as error:
            if is_damage(error):
                self._database.report(str(error))
            self._fail(str(error), 0)
        else:
            return True
        return False

    def _undo(self) -> None:
        if self._maintenance is not None:
            self._maintenance.undo()

    def _run_call(self, call: OwnTransaction) -> None:
        future = call.future
        if not future.set_running_or_notify_cancel():
            return
        try:
            with self._database.transaction() as connection:
                before = connection.total_changes
                result = call.work(self._store)
                has_changed = connection.total_changes > before
                self._store.write_progress()
        except Exception as error:  # noqa: BLE001  the caller gets it
            self._undo()
            future.set_exception(error)
        else:
            if has_changed and self._maintenance is not None:  # with many streams that takes half a second
                self._maintenance.refresh()
            future.set_result(result)

    def _maintain(self) -> bool:
        """Pack and trim for a slice of time; return whether more is due."""
        work = self._maintenance
        # While stuck, a slice without work finds out whether the disk accepts writes again.
        if work is None or (work.is_idle() and not self.stuck) or self._queue.stopping:
            return False
        try:
            if self._database.is_gone():
                return self._continue_elsewhere()
            with self._database.transaction():
                more = work.run_slice(self._clock(), lambda: self._queue.is_due)
            self._clear_stuck()
            if self._database.is_makeshift:  # there may be room again for what other processes read with
                return self._restore()
            return more
        except ValueError as error:  # a row that was read is malformed
            self._undo()
            self._database.report(str(error), rows=True)
        except (OSError, sqlite3.Error) as error:
            return self._handle_failure(error, 0)
        return False

    def _write_jsonl(self, records: Sequence[Record]) -> None:
        if self._jsonl is None or not records:
            return
        try:
            self._jsonl.write(records)
        except Exception as error:  # noqa: BLE001  the history has the records
            if not self.failures["jsonl"]:
                log.error("JSON lines cannot be written: %s; further failures are only counted", error)  # noqa: TRY400  a disk's fault, no traceback
            self.failures["jsonl"] += 1


def _sample_count(record: Record) -> int:
    return sum(len(columns.values) for columns in record.columns) if isinstance(record, BatchIngested) else 0
