"""Threads that run collectors while the sampler watches, so that one that hangs holds up none of the others.

A read in /proc or /sys can hang in a driver or in firmware, and nothing ends it from outside. Whoever waits in it is
left there, and another hand goes on with the collectors after it. It is run beside the others, and not waited for, until
it comes back as fast as they do.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.model.metric import Sample

LOOKS = 4
"""So often within the deadline it is looked whether a hand goes on. One that is late is looked at once more, for this
process may have stood still itself."""


class NoAnswer(Exception):  # noqa: N818 - says what is so
    """A collector has not come back; the message says for how long."""


class Outcome(NamedTuple):
    """How a collector's run went.

    Attributes:
        samples: Empty after an error.
        error: What it raised, or `NoAnswer`; None when it succeeded.
        took: Seconds, so far when it has not come back.
        time: When it ended, in Unix seconds.
        late: It came back after the tick that it was begun in.
    """

    samples: list[Sample]
    error: Exception | None
    took: float
    time: float
    late: bool = False


class Turn(NamedTuple):
    """A collector that runs, and since when."""

    collector: Collector
    begun: float


class Round:
    """Collectors that one hand runs, one after another.

    Args:
        collectors: In this order.
        clock: Seconds that they are timed by.
        wall: Unix time, in seconds.
        beside: Nobody waits for the first one, and no other is run.

    Attributes:
        outcomes: Of those that came back in time, by name.
        late: Of the one that did not.
        over: Set when the hand is free again.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        beside: bool = False,
    ) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.late: Outcome | None = None
        self.over = threading.Event()
        self._collectors = collectors
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._turn: Turn | None = None
        self._given_up = beside

    def run(self) -> None:
        """Runs them, in the hand's thread, up to one that is not waited for."""
        for collector in self._collectors:
            turn = self._turn = Turn(collector, self._clock())
            outcome = self._outcome(turn)
            with self._lock:
                if self._given_up:
                    self.late = outcome
                    break
                self.outcomes[collector.name] = outcome
                self._turn = None
        self.over.set()

    def wait(self, deadline: float) -> Turn | None:
        """Waits, in the sampler's thread, until all have run.

        Returns:
            The one that has run for longer than *deadline* seconds: it is not waited for any more, and those after it
            are not run. None when there is none.
        """
        suspect: Turn | None = None
        while not self.over.wait(deadline / LOOKS):
            with self._lock:
                turn = self._turn
                late = turn is not None and self._clock() - turn.begun >= deadline
                if late and turn is suspect:
                    self._given_up = True
                    return turn
                suspect = turn if late else None
        return None

    def _outcome(self, turn: Turn) -> Outcome:
        samples: list[Sample] = []
        problem: Exception | None = None
        try:
            samples = turn.collector.collect()
        except Exception as error:  # noqa: BLE001 - whatever one collector does, the others go on
            problem = error
        return Outcome(samples, problem, self._clock() - turn.begun, self._wall())


class Hand:
    """A thread that runs rounds until it is told to end.

    It lives as long as the sampler does, also when it has hung: a child process ends with the thread that started it,
    see `trackside_daemon.linux.worker_process`.
    """

    def __init__(self) -> None:
        self._rounds: queue.SimpleQueue[Round | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="collectors", daemon=True)
        self._thread.start()

    def take(self, collectors: Round) -> None:
        """Runs them, soon."""
        self._rounds.put(collectors)

    def end(self) -> None:
        """Ends the thread, when it is free."""
        self._rounds.put(None)

    def _run(self) -> None:
        while (collectors := self._rounds.get()) is not None:
            collectors.run()


class _Beside(NamedTuple):
    """A collector that runs while the others are run."""

    hand: Hand
    round: Round
    turn: Turn


class Hands:
    """One hand for all collectors, and one more for each that takes too long.

    Args:
        clock: Seconds that deadlines are measured by.
        wall: Unix time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock, wall
        self._free: list[Hand] = []
        self._beside: dict[str, _Beside] = {}

    def collect(self, collectors: Sequence[Collector], deadline: float) -> dict[str, Outcome]:
        """Runs collectors one after another, but for those that took longer in an earlier call.

        Args:
            collectors: In this order; each in no more than one thread at any time.
            deadline: Seconds that each may take.

        Returns:
            An outcome of each, by name.
        """
        outcomes = self._welcome(deadline)
        left = [one for one in collectors if one.name not in outcomes and one.name not in self._beside]
        while left:
            hand = self._free.pop() if self._free else Hand()
            begun = Round(left, self._clock, self._wall)
            hand.take(begun)
            turn = begun.wait(deadline)
            outcomes |= begun.outcomes
            if turn is None:
                self._free.append(hand)
                break
            self._beside[turn.collector.name] = _Beside(hand, begun, turn)
            left = left[left.index(turn.collector) + 1 :]
        return {name: self._no_answer(one.turn) for name, one in self._beside.items()} | outcomes

    def end(self) -> None:
        """Ends the threads; what hangs ends with the process."""
        for hand in (*self._free, *(one.hand for one in self._beside.values())):
            hand.end()
        self._free.clear()

    def _welcome(self, deadline: float) -> dict[str, Outcome]:
        """What those say that have come back. Who was fast is free for the next call; who was not begins again now."""
        outcomes = {}
        for name, (hand, ended, turn) in list(self._beside.items()):
            if not ended.over.is_set() or ended.late is None:
                continue
            late = ended.late.took >= deadline
            outcomes[name] = ended.late._replace(late=late)
            if late:
                again = Round([turn.collector], self._clock, self._wall, beside=True)
                self._beside[name] = _Beside(hand, again, Turn(turn.collector, self._clock()))
                hand.take(again)
            else:
                del self._beside[name]
                self._free.append(hand)
        return outcomes

    def _no_answer(self, turn: Turn) -> Outcome:
        took = self._clock() - turn.begun
        return Outcome([], NoAnswer(f"has not answered for {took:.1f} s"), took, self._wall())
