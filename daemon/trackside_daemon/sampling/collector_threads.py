"""Threads that run collectors, so that a collector that hangs does not delay the others.

A read in /proc or /sys can hang in a driver or in firmware, and no other thread can interrupt it. The thread that hangs
is left alone, and another thread runs the collectors that follow. The slow collector then runs detached, without
anything waiting for it, until it is as fast as the others again.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trackside_daemon.collectors.base import Collector
from trackside_daemon.model.metric import Sample

# A collector that hangs is given up at the second check after the deadline, so after 1.25 to 1.5 deadlines.
CHECKS_PER_DEADLINE = 4


class NoAnswer(Exception):  # noqa: N818 - names the state of the collector
    """A collector has not returned yet; the message gives the time so far."""


class Outcome(NamedTuple):
    """The result of one run of a collector."""

    samples: list[Sample]  # empty after an error
    error: Exception | None  # the exception that it raised, or `NoAnswer`; None after a success
    duration: float  # seconds; the time so far when it has not returned
    time: float  # when it ended, in Unix seconds
    late: bool = False  # it returned after the tick that started it


class Running(NamedTuple):
    """A collector that runs, and the monotonic time in seconds at which it started."""

    collector: Collector
    started: float


class CollectorPass:
    """One pass over a list of collectors, in one thread.

    Args:
        collectors: In the order in which they run.
        clock: Seconds of the monotonic clock, for durations.
        wall: Unix time, in seconds.
        detached: Nothing waits for the first collector, and no other runs after it.

    Attributes:
        outcomes: Outcomes of the collectors that returned in time, by name.
        late: Outcome of the collector that nothing waited for.
        finished: Set when the thread is free again.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        detached: bool = False,
    ) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.late: Outcome | None = None
        self.finished = threading.Event()
        self._collectors = collectors
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._running: Running | None = None
        self._detached = detached

    def run(self) -> None:
        """Run the collectors in the collector thread; stop after one that nothing waits for."""
        for collector in self._collectors:
            running = self._running = Running(collector, self._clock())
            outcome = self._outcome(running)
            with self._lock:
                # The lock decides the race with `wait`: a collector that returns just now counts either as in time or
                # as late.
                if self._detached:
                    self.late = outcome
                    break
                self.outcomes[collector.name] = outcome
                self._running = None
        self.finished.set()

    def wait(self, deadline: float) -> Running | None:
        """Wait, in the sampler's thread, until all collectors have run.

        Returns:
            The collector that has run for longer than *deadline* seconds, or None. Nothing waits for that collector
            from then on, and those after it do not run in this pass.
        """
        suspect: Running | None = None
        while not self.finished.wait(deadline / CHECKS_PER_DEADLINE):
            with self._lock:
                running = self._running
                late = running is not None and self._clock() - running.started >= deadline
                # Only a second check gives a late collector up: after the first, this process itself may have been
                # stopped or starved, with the collector ready to return.
                if late and running is suspect:
                    self._detached = True
                    return running
                suspect = running if late else None
        return None

    def _outcome(self, running: Running) -> Outcome:
        samples: list[Sample] = []
        problem: Exception | None = None
        try:
            samples = running.collector.collect()
        except Exception as error:  # noqa: BLE001 - one collector's failure must not stop the others
            problem = error
        return Outcome(samples, problem, self._clock() - running.started, self._wall())


class CollectorThread:
    """A thread that runs one `CollectorPass` after another until it is stopped.

    It lives as long as the sampler, also after a collector in it hung.
    """

    # A worker process gets a signal from the kernel when the thread that started it ends (PR_SET_PDEATHSIG, see
    # trackside_daemon.linux.worker_process), so a thread that came and went would end the NVML worker.

    def __init__(self) -> None:
        self._passes: queue.SimpleQueue[CollectorPass | None] = queue.SimpleQueue()
        # A daemon thread: one that hangs in the kernel must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="collectors", daemon=True)
        self._thread.start()

    def submit(self, collectors: CollectorPass) -> None:
        """Run a pass as soon as the thread is free."""
        self._passes.put(collectors)

    def stop(self) -> None:
        """End the thread as soon as it is free."""
        self._passes.put(None)

    def _run(self) -> None:
        while (collectors := self._passes.get()) is not None:
            collectors.run()


class _Detached(NamedTuple):
    """A collector that runs without the sampler waiting for it."""

    thread: CollectorThread
    collector_pass: CollectorPass
    running: Running


class CollectorThreads:
    """One thread for all collectors, and one more for each collector that takes too long.

    Args:
        clock: Seconds of the monotonic clock, for deadlines.
        wall: Unix time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall = wall
        self._free: list[CollectorThread] = []
        self._detached: dict[str, _Detached] = {}

    def collect(self, collectors: Sequence[Collector], deadline: float) -> dict[str, Outcome]:
        """Run collectors one after another, except those that are still detached from an earlier call.

        Args:
            collectors: In the order in which they run. Each runs in one thread at most.
            deadline: Seconds to wait for each collector.

        Returns:
            One outcome per collector, by name.
        """
        outcomes = self._finished_detached(deadline)
        left = [
            collector
            for collector in collectors
            if collector.name not in outcomes and collector.name not in self._detached
        ]
        while left:
            thread = self._free.pop() if self._free else CollectorThread()
            current = CollectorPass(left, self._clock, self._wall)
            thread.submit(current)
            running = current.wait(deadline)
            outcomes |= current.outcomes
            if running is None:
                self._free.append(thread)
                break
            self._detached[running.collector.name] = _Detached(thread, current, running)
            left = left[left.index(running.collector) + 1 :]
        # The outcome of a late run that has just ended replaces that of the run that was started in its place.
        return {name: self._no_answer(detached.running) for name, detached in self._detached.items()} | outcomes

    def stop(self) -> None:
        """End the threads; a thread that hangs ends with the process."""
        for thread in (*self._free, *(detached.thread for detached in self._detached.values())):
            thread.stop()
        self._free.clear()

    def _finished_detached(self, deadline: float) -> dict[str, Outcome]:
        """Return the outcomes of detached collectors that have returned, by name.

        A collector that met the deadline joins the others again in the next call. One that did not starts again
        detached, now.
        """
        outcomes = {}
        for name, (thread, ended, running) in list(self._detached.items()):
            if not ended.finished.is_set() or ended.late is None:
                continue
            late = ended.late.duration >= deadline
            outcomes[name] = ended.late._replace(late=late)
            if late:
                again = CollectorPass([running.collector], self._clock, self._wall, detached=True)
                self._detached[name] = _Detached(thread, again, Running(running.collector, self._clock()))
                thread.submit(again)
            else:
                del self._detached[name]
                self._free.append(thread)
        return outcomes

    def _no_answer(self, running: Running) -> Outcome:
        duration = self._clock() - running.started
        return Outcome([], NoAnswer(f"has not answered for {duration:.1f} s"), duration, self._wall())
