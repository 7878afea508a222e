"""The one thread that writes the history: group commits first, then a little packing and trimming between them.

What cannot be written, because the disk is full, waits here and is tried again each second. The queue is bounded; what
finds no room stays with the clients, whose messages are acknowledged only when they are committed.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from trackside_daemon.history.database import is_damage
from trackside_daemon.history.packing import Packing
from trackside_daemon.history.place import HistoryError
from trackside_daemon.history.store import Store
from trackside_daemon.history.trimming import Trimming
from trackside_daemon.metric import Metric, Sample
from trackside_daemon.record import Sampled, Taken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackside_daemon.history.database import Database
    from trackside_daemon.history.files.jsonl import JsonLines
    from trackside_daemon.history.trimming import Bounds
    from trackside_daemon.record import Record

SIZE = Metric("trackside_history_size_bytes", "gauge", "Size of the history's file and its WAL.", (), "bytes")
SAMPLES = Metric("trackside_history_samples_total", "counter", "Samples that were committed to the history.")
EXCESS = Metric(
    "trackside_history_excess_bytes",
    "gauge",
    "Bytes over storage.retention.size that pinned and live runs hold.",
    (),
    "bytes",
)

QUEUE_BYTES = 32 * 1024 * 1024
QUEUE_ITEMS = 1024
GROUP_BYTES = 4 * 1024 * 1024
"""What one transaction takes at most."""

SLICE_SECONDS = 0.015
"""For so long packing or trimming goes on before it looks whether something waits to be written."""

BACKLOG_BYTES = 32 * 1024 * 1024
"""With so much of the log to be packed, what waits to be written gives way to it for a slice at a time."""

RETRY_SECONDS = 1.0
TRIM_SECONDS = 5.0
"""How often it is looked whether the file is over its bounds."""

NONSENSE = (ArithmeticError, LookupError, TypeError, ValueError)
"""What is raised by numbers that no table takes, and by rows that make no sense."""

REFUSED = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, *NONSENSE)
"""What says that a record cannot be written, ever."""

T = TypeVar("T")
log = logging.getLogger("trackside")


class _Item:
    """Records that belong into one transaction, and whom to tell when they are committed."""

    __slots__ = ("receipt", "records", "size")

    def __init__(self, records: Sequence[Record], receipt: Any) -> None:
        self.records = records
        self.receipt = receipt
        self.size = sum(
            len(block.values) + len(block.steps) * 2 + 64
            for record in records
            if isinstance(record, Taken)
            for block in record.blocks
        )


class Writer:
    """Writes what it is given, in order.

    Args:
        database: The file.
        bounds: Of its size and age.
        acknowledge: Told of each receipt once its records are committed.
        renounce: Told when the file was damaged and set aside: what was not acknowledged has to come again.
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
        renounce: Callable[[], None] = lambda: None,
        hardware: Callable[[], Mapping[str, Any]] = dict,
        jsonl: JsonLines | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.failures = {"history": 0, "jsonl": 0}
        self.stuck = False
        self._database = database
        self._bounds = bounds
        self._acknowledge = acknowledge
        self._renounce = renounce
        self._hardware = hardware
        self._jsonl = jsonl
        self._clock = clock
        self._queue: deque[_Item] = deque()
        self._calls: deque[tuple[int, Callable[[Store], Any], Future[Any]]] = deque()
        self._size = 0
        self._put = 0
        self._over = False
        self._replaced = False
        self._changed = threading.Condition()
        self._stopping = False
        self._samples = 0
        self._bytes = 0
        self._begin()
        self._thread = threading.Thread(target=self._run, name="trackside-history", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued, if the disk takes it, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            self._over = True
            while self._calls:
                self._calls.popleft()[2].cancel()

    def put(self, records: Sequence[Record], receipt: Any = None) -> None:
        """Queue what belongs into one transaction. When there is no room, what was merely sampled is left out."""
        item = _Item(records, receipt)
        with self._changed:
            if receipt is None and not self._has_room() and all(isinstance(record, Sampled) for record in records):
                return
            self._queue.append(item)
            self._put += 1
            self._size += item.size
            self._changed.notify_all()

    def has_room(self) -> bool:
        """Whether more may be queued."""
        return self._has_room()

    def call(self, work: Callable[[Store], T]) -> Future[T]:
        """Have *work* done in a transaction of its own, after what is queued by now; cancelled after the end."""
        future: Future[T] = Future()
        with self._changed:
            if self._over:
                future.cancel()
            else:
                self._calls.append((self._put, work, future))
                self._changed.notify_all()
        return future

    def samples(self) -> list[Sample]:
        """What the history tells of itself."""
        return [
            Sample(SIZE, (), self._bytes),
            Sample(SAMPLES, (), self._samples),
            Sample(EXCESS, (), self._trimming.excess),
        ]

    def bound(self, bounds: Bounds) -> None:
        """Keep other bounds from now on."""
        self._bounds = self._trimming.bounds = bounds

    def _begin(self) -> None:
        self._store = Store(self._database.connection, self._hardware)
        self._trimming = Trimming(self._database.connection, self._database.path, self._bounds)
        self._packing: Packing | None = None
        self._trim_at = 0.0
        self._bytes = self._trimming.size()

    def _has_room(self) -> bool:
        return len(self._queue) < QUEUE_ITEMS and self._size < QUEUE_BYTES

    def _run(self) -> None:
        busy = True
        while True:
            group, call = self._next(0.0 if busy else TRIM_SECONDS)
            if group:
                self._commit(group)
            if call is not None:
                self._serve(*call)
            if self._stopping and not group and call is None:
                break
            busy = self._tidy()
        if self._jsonl is not None:
            self._jsonl.close()

    def _next(self, patience: float) -> tuple[list[_Item], tuple[Callable[[Store], Any], Future[Any]] | None]:
        """What is to be written next, waited for; and what is to be done then."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._calls or self._stopping, patience)
            group: list[_Item] = []
            size = 0
            written = self._put - len(self._queue)
            behind = self._calls[0][0] - written if self._calls else len(self._queue)
            while self._queue and size < GROUP_BYTES and len(group) < behind:
                group.append(self._queue.popleft())
                size += group[-1].size
            self._size -= size
            call = self._calls.popleft()[1:] if self._calls and len(group) >= behind else None
            return group, call

    def _commit(self, group: list[_Item]) -> bool:
        """Write a group, however long the disk takes; only a damaged file, or the end, makes it give up."""
        batches = len(group)
        while True:
            try:
                with self._database.transaction():
                    strange = self._apply(group)
            except REFUSED as error:
                self._undo()
                return self._part(group, error)
            except sqlite3.Error as error:
                if not self._failed(error, batches):
                    return False
                batches = 0
            else:
                break
        self._recovered()
        taken = (record for item in group for record in item.records if isinstance(record, Taken))
        self._samples += sum(len(block.values) // 8 for record in taken for block in record.blocks)
        for item in group:
            if item.receipt is not None and item not in strange:
                self._acknowledge(item.receipt)
        self._also(group)
        return True

    def _apply(self, group: list[_Item]) -> list[_Item]:
        """Write a group, in a transaction; what of it is not to be acknowledged."""
        strange = []
        for item in group:
            if self._is_strange(item):
                strange.append(item)
            for record in item.records:
                self._store.apply(record)
        self._store.settle()
        return strange

    def _is_strange(self, item: _Item) -> bool:
        """It was put before its sender knew that a new file has begun, which does not know the session: it comes again."""
        return self._replaced and any(
            isinstance(record, Taken) and not self._store.knows(record.session) for record in item.records
        )

    def _part(self, group: list[_Item], error: Exception) -> bool:
        """Write the items of a group one by one; of one that no table takes, only that its messages came."""
        if len(group) > 1:
            return all(self._commit([item]) for item in group)
        (item,) = group
        numbers = [Taken(one.session, one.number) for one in item.records if isinstance(one, Taken)]
        self.failures["history"] += 1
        log.error("a record cannot be written and is left out: %s: %s", type(error).__name__, error)
        return list(item.records) == numbers or self._commit([_Item(numbers, item.receipt)])

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
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, RETRY_SECONDS)
            return not self._stopping

    def _replace(self, error: Exception) -> None:
        """The file is damaged: begin a new one. Nothing of the queue is acknowledged, so the clients send it again."""
        with self._changed:
            self._queue.clear()
            self._size = 0
        self.failures["history"] += 1
        self._replaced = True
        aside = self._database.set_aside()
        log.error(
            "%s was damaged (%s): it is kept as %s, and a new history begins", self._database.path, error, aside.name
        )
        while not self._begun():
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, RETRY_SECONDS)
                if self._stopping:
                    return
        self._renounce()

    def _begun(self) -> bool:
        """Begin a new file, if the disk takes one."""
        try:
            self._database.begin()
        except HistoryError as error:
            if not self.stuck:
                self.stuck = True
                log.error("no new history can begin: %s; clients keep their samples until it can", error)  # noqa: TRY400  a disk's fault, no traceback
            return False
        self._begin()
        return True

    def _undo(self) -> None:
        self._store.forget()
        self._trimming.restart()
        self._packing = None

    def _serve(self, work: Callable[[Store], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            with self._database.transaction():
                result = work(self._store)
                self._store.settle()
        except Exception as error:  # noqa: BLE001  whoever asked gets it
            self._undo()
            future.set_exception(error)
        else:
            self._store.forget()
            self._trim_at = 0.0
            future.set_result(result)

    def _tidy(self) -> bool:
        """Pack or trim for a moment; whether there is more to do."""
        idle = self._packing is None and not self._store.due and self._clock() < self._trim_at
        if (idle and not self.stuck) or self._stopping:
            return False
        try:
            with self._database.transaction():
                until = time.monotonic() + SLICE_SECONDS
                more = True
                while more and time.monotonic() < until and not (self._queue and self._store.backlog < BACKLOG_BYTES):
                    more = self._pack() or self._trim()
            self._recovered()
            return more
        except NONSENSE as error:  # what was read
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
            self._store.packed(self._packing.stream)
            self._packing = None
        return True

    def _trim(self) -> bool:
        now = self._clock()
        if now < self._trim_at:
            return False
        self._bytes = self._trimming.size()
        deleted = self._trimming.deleted
        more = self._trimming.step(now)
        if self._trimming.deleted != deleted:
            self._store.forget()
        if more:
            return True
        self._trim_at = now + TRIM_SECONDS
        return False

    def _also(self, group: list[_Item]) -> None:
        if self._jsonl is None:
            return
        try:
            self._jsonl.write([record for item in group for record in item.records])
        except OSError as error:
            if not self.failures["jsonl"]:
                log.error("JSON lines cannot be written: %s; further failures are only counted", error)  # noqa: TRY400  a disk's fault, no traceback
            self.failures["jsonl"] += 1
