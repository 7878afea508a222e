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
from trackside_daemon.history.store import Store
from trackside_daemon.history.trimming import Trimming
from trackside_daemon.metric import Metric, Sample
from trackside_daemon.record import Sampled, Taken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackside_daemon.history.database import Database
    from trackside_daemon.history.jsonl import JsonLines
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
    ) -> None:
        self.failures = {"history": 0, "jsonl": 0}
        self.stuck = False
        self._database = database
        self._bounds = bounds
        self._acknowledge = acknowledge
        self._renounce = renounce
        self._hardware = hardware
        self._jsonl = jsonl
        self._queue: deque[_Item] = deque()
        self._calls: deque[tuple[Callable[[Store], Any], Future[Any]]] = deque()
        self._size = 0
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

    def put(self, records: Sequence[Record], receipt: Any = None) -> None:
        """Queue what belongs into one transaction. When there is no room, what was merely sampled is left out."""
        item = _Item(records, receipt)
        with self._changed:
            if receipt is None and not self._has_room() and all(isinstance(record, Sampled) for record in records):
                return
            self._queue.append(item)
            self._size += item.size
            self._changed.notify_all()

    def has_room(self) -> bool:
        """Whether more may be queued."""
        return self._has_room()

    def call(self, work: Callable[[Store], T]) -> Future[T]:
        """Have *work* done in a transaction of its own, after what is queued by now."""
        future: Future[T] = Future()
        with self._changed:
            self._calls.append((work, future))
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
        """What is to be written next, waited for; and once the queue is empty, what is to be done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._calls or self._stopping, patience)
            group: list[_Item] = []
            size = 0
            while self._queue and size < GROUP_BYTES:
                group.append(self._queue.popleft())
                size += group[-1].size
            self._size -= size
            call = self._calls.popleft() if self._calls and not self._queue else None
            return group, call

    def _commit(self, group: list[_Item]) -> None:
        """Write a group, however long the disk takes; only a damaged file, or the end, makes it give up."""
        while True:
            try:
                with self._database.transaction():
                    for item in group:
                        for record in item.records:
                            self._store.apply(record)
                    self._store.settle()
            except sqlite3.Error as error:
                if not self._failed(error, len(group)):
                    return
            else:
                break
        if self.stuck:
            self.stuck = False
            log.info("the history is written again")
        self._samples += sum(
            len(block.values) // 8
            for item in group
            for record in item.records
            if isinstance(record, Taken)
            for block in record.blocks
        )
        for item in group:
            if item.receipt is not None:
                self._acknowledge(item.receipt)
        self._also(group)

    def _failed(self, error: sqlite3.Error, batches: int) -> bool:
        """Count and say it once; whether to try again, after a moment."""
        self._undo()
        if is_damage(error):
            self._replace(error)
            return False
        if not self.stuck:
            self.stuck = True
            self.failures["history"] += batches
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
        aside = self._database.set_aside()
        log.error(
            "%s was damaged (%s): it is kept as %s, and a new history begins", self._database.path, error, aside.name
        )
        self._begin()
        self._renounce()

    def _undo(self) -> None:
        self._store.forget()
        self._trimming.restart()
        self._packing = None

    def _serve(self, work: Callable[[Store], Any], future: Future[Any]) -> None:
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
        idle = self._packing is None and not self._store.due and time.time() < self._trim_at
        if idle or self.stuck or self._stopping:
            return False
        try:
            with self._database.transaction():
                until = time.monotonic() + SLICE_SECONDS
                more = True
                while more and time.monotonic() < until and not (self._queue and self._store.backlog < BACKLOG_BYTES):
                    more = self._pack() or self._trim()
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
            self._store.packed(self._packing.stream)
            self._packing = None
        return True

    def _trim(self) -> bool:
        now = time.time()
        if now < self._trim_at:
            return False
        self._bytes = self._trimming.size()
        if self._trimming.step(now):
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
