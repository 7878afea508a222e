"""The batches of the last steps of a session, until a daemon asks for them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from trackside.drawn_batches import KeptBatches, StepBatches, packed

if TYPE_CHECKING:
    from collections.abc import Collection

    from trackside.drawn_batches import DrawnBatch

MOST_BYTES = 1 << 20
BATCH_BYTES = 300  # of a batch besides its list of samples


class RecentBatches:
    """Batches of the last steps, in `MOST_BYTES` at most. Used by the sender thread."""

    def __init__(self) -> None:
        self._steps: deque[StepBatches] = deque()
        self._waiting: deque[tuple[int, DrawnBatch]] = deque()
        self._bytes = 0
        self._last = -1, 0  # the last step, after the time of its first push

    def arrived(self, time: int, batches: Collection[DrawnBatch]) -> None:
        """Add batches that a training fetched at *time* in monotonic nanoseconds."""
        waiting = self._waiting
        for iteration, number, samples in batches:
            batch = iteration, number, packed(samples) if type(samples) is list else samples
            waiting.append((time, batch))
            self._bytes += _size(batch)
        if time <= self._last[0]:  # fetched for the step that has opened the run
            self.step_began(*self._last)
        while self._bytes > MOST_BYTES:
            dropped = self._steps.popleft().batches if self._steps else (waiting.popleft()[1],)
            self._bytes -= sum(map(_size, dropped))

    def step_began(self, time: int, step: int) -> None:
        """Note the first push of a step: the batches that were fetched before it are that step's."""
        waiting, fetched = self._waiting, []
        self._last = time, step
        while waiting and waiting[0][0] <= time:
            fetched.append(waiting.popleft()[1])
        if len(fetched) > 1:  # of several, the same one may be reported by the user's loader and by --auto
            every, fetched = fetched, list({one[:2]: one for one in fetched}.values())
            self._bytes -= sum(map(_size, every)) - sum(map(_size, fetched))
        if fetched:
            self._steps.append(StepBatches(step, tuple(fetched)))

    def of(self, step: int, before: int) -> KeptBatches:
        """Return the batches of a step, the last ones if it was repeated, and of some steps *before* it, if they are kept."""
        kept = list(self._steps)
        at = next((place for place in range(len(kept) - 1, -1, -1) if kept[place].step == step), None)
        found = [] if at is None else kept[max(0, at - before) : at + 1][::-1]
        return KeptBatches(found, min((one.step for one in kept), default=None))


def _size(batch: DrawnBatch) -> int:
    return BATCH_BYTES + len(batch[2] or b"")
