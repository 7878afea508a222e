"""Requests to one worker and its answers, one after another, each within a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trackside_daemon.nvml.reading import Reading, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.linux.worker_process import WorkerProcess

INIT_DEADLINE, GPU_DEADLINE = 60.0, 10.0
"""Seconds without a sign of life, while a worker has never answered, and later: its going on to a GPU is one. Without
persistence mode nvmlInit wakes every GPU up."""
CYCLE_DEADLINE = 60.0
"""Seconds for all GPUs, however steadily it goes on; a first answer has those of `INIT_DEADLINE` on top."""
INTERVALS, AGE = 2.0, 2.5
"""An answer that was measured longer ago is none, in intervals and at least in seconds."""

NAP = 0.05
"""Seconds at most between a request and the first look for its answer."""

_decode = msgspec.json.Decoder(Reading).decode


class Answer(NamedTuple):
    """A reading, and the indexes that its request left alone."""

    reading: Reading
    avoided: frozenset[int]


class Dialogue:
    """With one worker, from its start on.

    Args:
        child: The worker.
        clock: Seconds that deadlines are measured by.

    Attributes:
        at: The index of the GPU that the worker went on to last, for the last request; None before the first.
        deadline: Seconds without a sign of life until the worker is to be given up.
        longest: Seconds from the last request until then, with any.
    """

    def __init__(self, child: WorkerProcess, clock: Callable[[], float]) -> None:
        self.at: int | None = None
        self.deadline, self.longest = INIT_DEADLINE, INIT_DEADLINE + CYCLE_DEADLINE
        self._child, self._clock = child, clock
        self._calls = 0
        self._outstanding = False
        self._avoided: frozenset[int] = frozenset()
        self._asked_in, self._asked_at, self._lived_at = 0, 0.0, 0.0
        self._began = self._took = 0.0

    @property
    def waited(self) -> float:
        """Seconds since the last request."""
        return self._clock() - self._asked_at

    @property
    def silent(self) -> float:
        """Seconds since the last request or sign of life."""
        return self._clock() - self._lived_at

    @property
    def is_old(self) -> bool:
        """Whether the last request was made by a call of `reading` before the last."""
        return self._asked_in != self._calls

    def reading(self, avoid: frozenset[int], interval: float, until: float) -> Answer | None:
        """An answer to this call's request, waited for until *until* of `time.monotonic`.

        A call that finds one to the request of a call before makes its own all the same, and gives the older answer
        only where the newer does not come in time: else one slow cycle would put all that follow behind, and of a
        worker that is always slow there would be nothing.

        Args:
            avoid: Indexes of GPUs that a new request leaves alone.
            interval: Seconds that a new request says until the next.
            until: An answer that comes later is for the next call.

        Raises:
            ChildFailed: The worker has ended, or talks nonsense.
            MsgspecError: It talks nonsense in JSON.
        """
        self._calls += 1
        late = None
        while True:
            if not self._outstanding:
                self._ask(avoid, interval)
                self._let_it_work(until)
            line = self._child.answer(until)
            if line is None:
                return late
            if line.isdigit():
                self.at, self._lived_at = int(line), self._clock()
                continue
            self._outstanding, self.deadline, self.longest = False, GPU_DEADLINE, CYCLE_DEADLINE
            answer = Answer(_decode(line), self._avoided)
            self._took = time.monotonic() - self._began
            if answer.reading.error or not self.is_old:
                return answer
            now = time.monotonic()
            if now - (answer.reading.measured or now) <= max(INTERVALS * interval, AGE):
                late = answer

    def _let_it_work(self, until: float) -> None:
        """Wait for most of what the last answer took: each line that is waited for wakes this thread up, and is read later."""
        self._began = time.monotonic()
        time.sleep(max(0.0, min(0.8 * self._took, NAP, until - self._began)))

    def _ask(self, avoid: frozenset[int], interval: float) -> None:
        self._child.ask(msgspec.json.encode(Request(sorted(avoid), interval)))
        self._avoided, self.at = avoid, None
        self._outstanding, self._asked_in = True, self._calls
        self._asked_at = self._lived_at = self._clock()
