"""The queue of the history writer: records in order, and calls between them. It is bounded and thread-safe."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trackside_daemon.model.records import AccountUpdated, BatchIngested, Event, MachineSample, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.history.record.store import Store
    from trackside_daemon.model.records import Record

QUEUE_BYTES = 32 * 1024 * 1024
QUEUE_ITEMS = 1024
GROUP_BYTES = 4 * 1024 * 1024  # bytes of one transaction, at most one item more

# Least seconds between two transactions of rows alone, so that many clients share one. Whatever ends or begins is written
# at once, since a client waits for its end.
COMMIT_SECONDS = 0.05

T = TypeVar("T")


class QueueItem(NamedTuple):
    """Records of one transaction, the receipt to acknowledge after the commit, and their approximate size in bytes.

    Attributes:
        can_wait: They are only rows or samples, which may wait for others.
    """

    records: Sequence[Record]
    receipt: Any
    size: int
    can_wait: bool = False


class Call(NamedTuple):
    """Work for its own transaction, after the items that were queued before it.

    Attributes:
        position: How many items were queued before it, ever.
    """

    position: int
    work: Callable[[Store], Any]
    future: Future[Any]


class Queue:
    """A queue that many threads fill and one empties.

    Attributes:
        stopping: The writer writes what is queued, and then ends.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._items: deque[QueueItem] = deque()
        self._calls: deque[Call] = deque()
        self._size = 0
        self._put = 0
        self._closed = False
        self._urgent = 0
        self._collects = False
        self._woken = False
        self._got_at = 0.0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_room(self) -> bool:
        """True if more may be queued."""
        return len(self._items) < QUEUE_ITEMS and self._size < QUEUE_BYTES

    @property
    def is_due(self) -> bool:
        """True if a transaction is to begin now."""
        is_old = time.monotonic() - self._got_at >= COMMIT_SECONDS
        return bool(self._calls) or (bool(self._items) and (is_old or self._urgent > 0 or not self.has_room))

    def put(self, records: Sequence[Record], receipt: Any) -> None:
        """Queue the records of one transaction; drop them if the queue is full and they are mere samples or accounts."""
        item = QueueItem(records, receipt, sum(map(_size, records)), can_wait=all(map(_can_wait, records)))
        with self._changed:
            if (
                receipt is None
                and not self.has_room
                and all(isinstance(record, MachineSample | AccountUpdated) for record in records)
            ):
                return
            self._items.append(item)
            self._put += 1
            self._size += item.size
            self._urgent += not item.can_wait
            if not self._collects or not item.can_wait or not self.has_room:
                self._changed.notify_all()

    def call(self, work: Callable[[Store], T]) -> Future[T]:
        """Queue work; after `close` its future is cancelled."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
            else:
                self._calls.append(Call(self._put, work, future))
                self._changed.notify_all()
        return future

    def get(self, timeout: float) -> tuple[list[QueueItem], Call | None]:
        """Return the items of the next transaction and the call after them; wait for them at most *timeout* seconds.

        Without a timeout the caller has other work, so that rows which may wait stay in the queue.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._calls or self.stopping or self._woken, timeout)
            self._woken = False
            if timeout:
                self._collect()
            if not self.is_due and not self.stopping:
                return [], None
            self._got_at = time.monotonic()
            group: list[QueueItem] = []
            size = 0
            removed = self._put - len(self._items)
            before_call = self._calls[0].position - removed if self._calls else len(self._items)
            while self._items and size < GROUP_BYTES and len(group) < before_call:
                group.append(self._items.popleft())
                size += group[-1].size
                self._urgent -= not group[-1].can_wait
            self._size -= size
            return group, self._calls.popleft() if self._calls and len(group) >= before_call else None

    def _collect(self) -> None:
        """Wait for further rows, if the last transaction was a moment ago."""
        left = self._got_at + COMMIT_SECONDS - time.monotonic()
        if self._items and left > 0:
            self._collects = True
            self._changed.wait_for(lambda: self.is_due or self.stopping, left)
            self._collects = False

    def wake(self) -> None:
        """End a wait in `get`."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Wait for *seconds*, or until `stop`; return False if the queue is stopping."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopping, seconds)
            return not self.stopping

    def stop(self) -> None:
        """Ask the writer to end."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def close(self) -> None:
        """Cancel all calls, also later ones."""
        with self._changed:
            self._closed = True
            while self._calls:
                self._calls.popleft().future.cancel()  # or its caller would wait for ever


def _can_wait(record: Record) -> bool:
    """Return whether a record is no begin and no end; the message that ends a session has no rows."""
    if isinstance(record, BatchIngested):
        return bool(record.columns)
    return isinstance(record, MachineSample | AccountUpdated)


def _size(record: Record) -> int:
    """Return the approximate size of a record in memory, in bytes."""
    if isinstance(record, BatchIngested):
        return 64 + sum(8 * (len(one.values) + 2 * len(one.steps)) + 64 for one in record.columns)
    if isinstance(record, SessionOpened):
        return 1024 + len(record.hello.config) + sum(map(len, record.hello.tags))
    return 1024 if isinstance(record, Event) else 256
