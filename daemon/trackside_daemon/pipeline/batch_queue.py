"""The two bounded queues of batches in front of the pipeline: ticks first, pushes second."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from trackside_daemon.history.record.queue import record_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.model.metric import Batch

PUSHES_WAITING = 256  # the most queued pushes; with more, ingest reads no further messages
PUSHED_BYTES = 256 << 10  # and of their records together: two full batches, each some 0.1 s of work
TICKS_WAITING = 64  # the most queued ticks; with more, the oldest are dropped


class BatchQueue:
    """Filled by many threads, emptied by the pipeline's thread."""

    def __init__(self) -> None:
        self._ticks: deque[Batch] = deque(maxlen=TICKS_WAITING)
        self._pushes: deque[tuple[Batch, int]] = deque()  # with their sizes
        self._pushed_bytes = 0
        self._changed = threading.Condition()
        self._stopping = False

    def tick(self, batches: Sequence[Batch]) -> None:
        """Queue sampled batches. They precede all pushes, so that a backlog of pushes never makes a GPU disappear."""
        with self._changed:
            self._ticks.extend(batches)
            self._changed.notify_all()

    def push(self, batches: Sequence[Batch]) -> None:
        """Queue pushed batches; `has_room` returns whether to."""
        sized = [(batch, sum(map(record_size, batch.records))) for batch in batches]
        with self._changed:
            self._pushes.extend(sized)
            self._pushed_bytes += sum(size for _, size in sized)
            self._changed.notify_all()

    def has_room(self) -> bool:
        """Return whether more may be pushed."""
        # Without the lock: at worst a few more get in.
        return len(self._pushes) < PUSHES_WAITING and self._pushed_bytes < PUSHED_BYTES

    def wait(self, seconds: float) -> bool:
        """Wait so long that `get` returns at once; return whether it does. Without any seconds return False."""
        with self._changed:
            return seconds > 0 and bool(
                self._changed.wait_for(lambda: self._ticks or self._pushes or self._stopping, seconds)
            )

    def get(self) -> Batch | None:
        """Wait for the next batch; return None if none is left after `stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ticks or self._pushes or self._stopping)
            if self._ticks or not self._pushes:
                return self._ticks.popleft() if self._ticks else None
            batch, size = self._pushes.popleft()
            self._pushed_bytes -= size
            return batch

    def stop(self) -> None:
        """Let `get` return None once the queues are empty."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
