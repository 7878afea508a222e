"""Requests to one worker and its answers, one after another, each within a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trackside_daemon.nvml.reading import Reading, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.nvml.child import Child

INIT_DEADLINE = 60.0
"""Seconds for a worker's first answer: without persistence mode nvmlInit wakes every GPU up."""
CYCLE_DEADLINE = 10.0

_decode = msgspec.json.Decoder(Reading).decode


class Dialogue:
    """With one worker, from its start on.

    Args:
        child: The worker.
        clock: Seconds that deadlines are measured by.

    Attributes:
        avoided: Indexes of the GPUs that the last request leaves alone.
        at: The index of the GPU that the worker went on to last, for the last request; None before the first.
        deadline: Seconds from the last request until the worker is to be given up.
    """

    def __init__(self, child: Child, clock: Callable[[], float]) -> None:
        self.avoided: frozenset[int] = frozenset()
        self.at: int | None = None
        self.deadline = INIT_DEADLINE
        self._child, self._clock = child, clock
        self._calls = 0
        self._outstanding = False
        self._asked_in, self._asked_at = 0, 0.0

    @property
    def waited(self) -> float:
        """Seconds since the last request."""
        return self._clock() - self._asked_at

    @property
    def is_old(self) -> bool:
        """Whether the last request was made by a call of `reading` before the last."""
        return self._asked_in != self._calls

    def reading(self, avoid: frozenset[int], interval: float, until: float) -> Reading | None:
        """An answer to this call's request or to that of the call before, waited for until *until* of `time.monotonic`.

        Args:
            avoid: Indexes of GPUs that a new request leaves alone.
            interval: Seconds that a new request says until the next.
            until: An answer that comes later is taken by the next call; after that it is too old, and asked for again.

        Raises:
            ChildFailed: The worker has ended, or talks nonsense.
            MsgspecError: It talks nonsense in JSON.
        """
        self._calls += 1
        while True:
            if not self._outstanding:
                self._ask(avoid, interval)
            line = self._child.answer(until)
            if line is None:
                return None
            if line.isdigit():
                self.at = int(line)
                continue
            self._outstanding, self.deadline = False, CYCLE_DEADLINE
            reading = _decode(line)
            if reading.error or self._calls - self._asked_in <= 1:
                return reading

    def _ask(self, avoid: frozenset[int], interval: float) -> None:
        self._child.ask(msgspec.json.encode(Request(sorted(avoid), interval)))
        self.avoided, self.at = avoid, None
        self._outstanding, self._asked_in, self._asked_at = True, self._calls, self._clock()
