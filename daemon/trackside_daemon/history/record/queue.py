"""What waits to be written: records, in order, and work to be done between them. Bounded, and safe for any thread."""

from __future__ import annotations

import threading
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
GROUP_BYTES = 4 * 1024 * 1024
"""What one transaction takes at most."""

T = TypeVar("T")


class QueueItem(NamedTuple):
    """Records that belong into one transaction, whom to tell when they are committed, and about how large they are."""

    records: Sequence[Record]
    receipt: Any
    size: int


class Call(NamedTuple):
    """Work for a transaction of its own, behind the items that were put before it."""

    behind: int
    work: Callable[[Store], Any]
    future: Future[Any]


class Queue:
    """Filled by many threads, emptied by one.

    Attributes:
        stopping: What is queued is to be written, and then nothing more.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._items: deque[QueueItem] = deque()
        self._calls: deque[Call] = deque()
        self._size = self._put = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_room(self) -> bool:
        """More may be put."""
        return len(self._items) < QUEUE_ITEMS and self._size < QUEUE_BYTES

    def put(self, records: Sequence[Record], receipt: Any) -> None:
        """Queue what belongs into one transaction. When there is no room, what was merely sampled or reckoned is left out."""
        item = QueueItem(records, receipt, sum(map(_size, records)))
        with self._changed:
            if (
                receipt is None
                and not self.has_room
                and all(isinstance(one, MachineSample | AccountUpdated) for one in records)
            ):
                return
            self._items.append(item)
            self._put += 1
            self._size += item.size
            self._changed.notify_all()

    def call(self, work: Callable[[Store], T]) -> Future[T]:
        """Queue work; cancelled after `close`."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
            else:
                self._calls.append(Call(self._put, work, future))
                self._changed.notify_all()
        return future

    def get(self, timeout: float) -> tuple[list[QueueItem], Call | None]:
        """What is to be written next, waited for at most *patience* seconds; and what is to be done then."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._calls or self.stopping, timeout)
            group: list[QueueItem] = []
            size = 0
            taken = self._put - len(self._items)
            behind = self._calls[0].behind - taken if self._calls else len(self._items)
            while self._items and size < GROUP_BYTES and len(group) < behind:
                group.append(self._items.popleft())
                size += group[-1].size
            self._size -= size
            return group, self._calls.popleft() if self._calls and len(group) >= behind else None

    def clear(self) -> None:
        """Forget the items."""
        with self._changed:
            self._items.clear()
            self._size = 0

    def pause(self, seconds: float) -> bool:
        """Wait for so long, or until it is to stop; whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopping, seconds)
            return not self.stopping

    def stop(self) -> None:
        """Let the one who empties it come to an end."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody empties it any more."""
        with self._changed:
            self._closed = True
            while self._calls:
                self._calls.popleft().future.cancel()


def _size(record: Record) -> int:
    """About how many bytes of memory a record holds."""
    if isinstance(record, BatchIngested):
        return 64 + sum(len(block.values) + len(block.steps) * 2 + 64 for block in record.blocks)
    if isinstance(record, SessionOpened):
        return 1024 + len(record.hello.config) + sum(map(len, record.hello.tags))
    return 1024 if isinstance(record, Event) else 256
