"""The queue of the history writer: records, whose owners take turns, and calls between them. It is bounded and thread-safe."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from trackside_daemon.history.record.store import RecordStore
from trackside_daemon.model.records import (
    AccountUpdated,
    BatchIngested,
    Event,
    MachineSample,
    Record,
    SessionOpened,
    Silence,
)
from trackside_daemon.model.turns import Turns

QUEUE_BYTES = 32 * 1024 * 1024
QUEUE_ITEMS = 1024
GROUP_BYTES = 4 * 1024 * 1024  # bytes of one transaction, at most one item of each owner more

UNKNOWN = "unknown"  # owner of the runs that no session has opened since the daemon's start, or too long ago
OWNERS = 10_000  # runs whose owner is known, the last ones in use: far more than wait

# Least seconds between two transactions of rows alone, so that many clients share one. Whatever ends or begins is written
# at once, since a client waits for its end.
COMMIT_SECONDS = 0.05

T = TypeVar("T")


class QueueItem(NamedTuple):
    """Records of one transaction, the receipt to acknowledge after the commit, and their approximate size in bytes."""

    records: Sequence[Record]
    receipt: Any
    size: int
    can_wait: bool = False  # they are only rows or samples, which may wait for others
    number: int = 0  # how many items were queued before it, ever


class OwnTransaction(NamedTuple):
    """Work for its own transaction, after the items that were queued before it."""

    position: int  # how many items were queued before it, ever
    work: Callable[[RecordStore], Any]
    future: Future[Any]


class Queue:
    """A queue that many threads fill and one empties.

    The owners of runs get equal shares of each transaction, in bytes, as long as they have something to write. The records of
    one owner keep their order. Those of no owner, such as the machine's, come first: only the daemon makes them.

    Args:
        size: Bytes that wait, at most one item more.
        group: See `GROUP_BYTES`; *commit* is `COMMIT_SECONDS`, and *owners* is `OWNERS`.

    Attributes:
        stopping: The writer writes what is queued, and then ends.
    """

    def __init__(
        self, size: int = QUEUE_BYTES, group: int = GROUP_BYTES, commit: float = COMMIT_SECONDS, owners: int = OWNERS
    ) -> None:
        self.stopping = False
        self._limit, self._group, self._commit, self._most_owners = size, group, commit, owners
        self._turns: Turns[QueueItem] = Turns()
        self._owners: dict[str, str] = {}
        """By run, the one that was used last at the end."""
        self._calls: deque[OwnTransaction] = deque()
        self._length = self._size = self._put = 0
        self._closed = False
        self._urgent = 0
        self._collects = False
        self._woken = False
        self._got_at = -math.inf
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._length

    @property
    def has_room(self) -> bool:
        """True if more may be queued."""
        return self._length < QUEUE_ITEMS and self._size < self._limit

    @property
    def is_due(self) -> bool:
        """True if a transaction is to begin now."""
        is_old = time.monotonic() - self._got_at >= self._commit
        return bool(self._calls) or (self._length > 0 and (is_old or self._urgent > 0 or not self.has_room))

    def put(self, records: Sequence[Record], receipt: Any) -> None:
        """Queue the records of one transaction; drop them if the queue is full and they are mere samples or accounts."""
        with self._changed:
            parts: dict[str, list[Record]] = {}
            for record in records:
                parts.setdefault(self._owner(record), []).append(record)
            if receipt is not None or not parts:  # one message, so of one owner
                parts = {next(iter(parts), ""): [*records]}
            for owner, part in parts.items():
                self._add(owner, part, receipt)

    def _add(self, owner: str, records: Sequence[Record], receipt: Any) -> None:
        """Queue the records of one transaction, which are of one owner."""
        waiting = self._turns.waiting.get(owner, ())
        is_dispensable = receipt is None and all(
            isinstance(record, MachineSample | AccountUpdated) for record in records
        )
        if is_dispensable and not self.has_room and len(waiting) >= QUEUE_ITEMS / max(1, len(self._turns.waiting)):
            return
        item = QueueItem(records, receipt, sum(map(record_size, records)), all(map(_can_wait, records)), self._put)
        self._turns.add(owner, item)
        self._put += 1
        self._length += 1
        self._size += item.size
        self._urgent += not item.can_wait
        if not self._collects or not item.can_wait or not self.has_room:
            self._changed.notify_all()

    def _owner(self, record: Record) -> str:
        """Return the owner of a record's run; empty without a run, so that nobody comes first by a run that was forgotten."""
        if isinstance(record, Silence):
            return ""
        pushed = record.session if isinstance(record, BatchIngested | SessionOpened) else None
        run = record.run if pushed is None else pushed.run  # type: ignore[union-attr]  # all others have one
        owner = self._owners.pop(run, "")
        if isinstance(record, SessionOpened) and record.owner is not None:
            owner = record.owner.id or UNKNOWN
        if not owner and (run or pushed is not None):
            return UNKNOWN
        if owner:
            self._owners[run] = owner
            if len(self._owners) > self._most_owners:
                del self._owners[next(iter(self._owners))]
        return owner

    def call(self, work: Callable[[RecordStore], T]) -> Future[T]:
        """Queue work; after `close` its future is cancelled."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
            else:
                self._calls.append(OwnTransaction(self._put, work, future))
                self._changed.notify_all()
        return future

    def get(self, timeout: float) -> tuple[list[QueueItem], OwnTransaction | None]:
        """Return the items of the next transaction and the call after them; wait for them at most *timeout* seconds.

        Without a timeout the caller has other work, so that rows which may wait stay in the queue.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._length or self._calls or self.stopping or self._woken, timeout)
            self._woken = False
            if timeout:
                self._collect()
            if not self.is_due and not self.stopping:
                return [], None
            self._got_at = time.monotonic()
            group: list[QueueItem] = []
            waiting, taken = self._turns.waiting, self._turns.taken
            taken.clear()
            share = self._group / max(1, len(waiting))  # of each owner, however large the items of others are
            while waiting:
                owner = "" if "" in waiting else self._turns.next()
                if taken.total() >= self._group and taken[owner] >= share:
                    break
                group.append(self._turns.get(owner))
                self._urgent -= not group[-1].can_wait
            self._size -= taken.total()
            self._length -= len(group)
            first = min((items[0].number for items in waiting.values()), default=self._put)
            return group, self._calls.popleft() if self._calls and first >= self._calls[0].position else None

    def _collect(self) -> None:
        """Wait for further rows, if the last transaction was a moment ago."""
        left = self._got_at + self._commit - time.monotonic()
        if self._length and left > 0:
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


def record_size(record: Record) -> int:
    """Return the approximate size of a record in memory, in bytes."""
    if isinstance(record, BatchIngested):
        rows = sum(8 * (len(one.values) + 2 * len(one.steps)) + 64 for one in record.columns)
        return 64 + rows + sum(256 + len(item.data) for item in record.media)
    if isinstance(record, SessionOpened):
        return 1024 + len(record.hello.config) + sum(map(len, record.hello.tags)) + 128 * len(record.hello.last)
    # Of an event, 16 bytes for each character: an empty list of three characters has 64 bytes.
    return 1024 + 16 * record.size if isinstance(record, Event) else 256
