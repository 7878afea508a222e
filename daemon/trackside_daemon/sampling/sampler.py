"""The sampler: runs every collector on each tick, times it and reports its success."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from trackside.os_errors import file_error_text
from trackside_daemon.collectors.base import Collector, LeavesOut, NothingToCollect, StillBusy
from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import Record
from trackside_daemon.sampling.collector_threads import CollectorThreads, NoAnswer, Outcome

_log = logging.getLogger("trackside")

# After one failure the samples of the tick before are still served, so a single failure is not logged.
FAILURES_TO_LOG = 2  # failures of one kind, without a success in between, after which the failure is logged

# Fewer would fill the log with a collector that fails from time to time.
SUCCESSES_TO_LOG = 10  # consecutive successes after which the end of a logged failure is logged

# Sample intervals for which a collector's samples are served, so that one missed tick leaves no gap.
SERVED_INTERVALS = 2

# The configuration key that switches a collector off, where that is not the collector's name.
_SWITCHES = {"nvml": "gpu"}


class Late(Exception):  # noqa: N818 - its samples are used
    """A collector takes longer than a tick waits, but its samples are still fresh; the message gives the duration."""


class TooLate(Exception):  # noqa: N818 - names the state of the collector
    """A collector takes longer than its samples are served; the message gives the duration."""


class Sampler:
    """A thread that ticks on a fixed grid; missed ticks are skipped and not repeated.

    Args:
        collectors: Run one after another, in this order.
        deliver: Accepts the batches of a tick, in the sampler's thread; it must neither block long nor raise.
        interval: Seconds between ticks. You may set it while the sampler runs; it applies from the next tick on.
        deadline: Seconds that a tick waits for one collector; None to derive it from the interval with `deadline`.
        reports: Returns, after each tick, the events that collectors observed, for the history.
        clock: Seconds of the monotonic clock; the unit of a batch's ``until``.
        wall: Unix time, in seconds.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        deliver: Callable[[list[Batch]], None],
        interval: float,
        *,
        deadline: float | None = None,
        reports: Callable[[], Sequence[Record]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval = interval
        self._collectors = tuple(collectors)
        self._threads = CollectorThreads(clock, wall)
        self._deadline = deadline
        self._deliver = deliver
        self._reports = reports
        self._clock = clock
        self._wall = wall
        self._stopped = threading.Event()
        self._due = math.inf  # `behind` is 0 before the first tick
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._last_success: dict[str, float] = {}
        self._failing: dict[str, set[type[Exception]]] = {}
        self._failures: dict[str, Counter[type[Exception]]] = {}
        self._successes: dict[str, int] = {}
        self._skipped = {collector.name: 0 for collector in self._collectors}
        self._states: dict[str, dict[str, str]] = {}

    def start(self) -> None:
        """Start the thread; the first tick follows at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread: start no further tick, and wait at most 5 s for the one that runs."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._threads.stop()

    def behind(self) -> float:
        """Return the seconds by which the next tick is late, beyond the delay that all collectors hanging at once cause."""
        limit = self._deadline or deadline(self.interval)
        # Twice the deadline, because a collector that hangs is given up only after up to 1.5 deadlines.
        return max(0.0, self._clock() - self._due - 2 * limit * len(self._collectors))

    def states(self) -> dict[str, dict[str, str]]:
        """Return the state of each collector after its last run, by name.

        ``state`` is ``ok``, ``nothing``, ``partial``, ``busy``, ``slow``, ``hangs`` or ``fails``; all but the first have
        ``why``.
        """
        parts = {one.name: one.left_out for one in self._collectors if isinstance(one, LeavesOut)}
        partial = {name: {"state": "partial", "why": why} for name, why in parts.items() if why}
        # A copy, because other threads iterate over it while the sampler's thread changes it.
        return {**self._states, **partial}

    def tick(self, now: float) -> list[Batch]:
        """Run every collector at *now*, in seconds of the monotonic clock.

        Returns:
            One batch per collector that succeeded, an empty batch per collector that had nothing to collect, and last
            the sampler's own batch about all of them.
        """
        until = now + SERVED_INTERVALS * self.interval + 0.5
        batches: list[Batch] = []
        about: list[Sample] = []
        limit = self._deadline or deadline(self.interval)
        outcomes = self._threads.collect(self._collectors, limit)
        for name in (collector.name for collector in self._collectors):
            outcome = self._check_lateness(outcomes[name], limit)
            about.append(Sample(daemon.COLLECTOR_DURATION, (name,), outcome.duration))
            about.append(Sample(daemon.COLLECTOR_SUCCESS, (name,), float(_has_samples(outcome))))
            self._record(name, outcome)
            _drop_tracebacks(outcome.error)
            # Without samples, the batch is empty and complete, so the collector's series end now instead of when they
            # expire.
            if _has_samples(outcome) or isinstance(outcome.error, NothingToCollect):
                batches.append(Batch(name, outcome.samples, complete=True, until=until, time=outcome.time))
        about += (Sample(daemon.COLLECTOR_LAST_SUCCESS, (name,), when) for name, when in self._last_success.items())
        about += (Sample(daemon.COLLECTOR_SKIPPED, (name,), times) for name, times in self._skipped.items())
        if records := self._reports():
            batches.append(Batch("reports", records=records))
        return [*batches, Batch("sampler", about, complete=True, until=until)]

    def _check_lateness(self, outcome: Outcome, limit: float) -> Outcome:
        """Mark an outcome that came late; drop its samples when they are too old to be served."""
        if not outcome.late or outcome.error is not None:
            return outcome
        takes = f"takes {outcome.duration:.2f} s"
        if outcome.duration > SERVED_INTERVALS * self.interval:
            why = f"{takes}, too long for ticks of {self.interval:g} s, and is left out"
            return outcome._replace(samples=[], error=TooLate(why))
        why = f"{takes} but a tick waits only {limit:.2f} s, so its samples arrive one tick late"
        return outcome._replace(error=Late(why))

    def _record(self, name: str, outcome: Outcome) -> None:
        """Keep the collector's state, and log changes."""
        error = outcome.error
        self._states[name] = _state(error)
        if _has_samples(outcome):
            self._last_success[name] = outcome.time
        elif isinstance(error, NothingToCollect):  # this is no failure
            # Without this series, the Prometheus rule TracksideCollectorFailing does not fire.
            self._last_success.pop(name, None)
        if error is None:
            self._record_success(name)
            return
        self._successes[name] = 0
        failures = self._failures.setdefault(name, Counter())
        failures[type(error)] += 1
        self._skipped[name] += isinstance(error, (StillBusy, NoAnswer, TooLate))
        if isinstance(error, NothingToCollect) or failures[type(error)] >= FAILURES_TO_LOG:
            self._log_failure(name, error)

    def _record_success(self, name: str) -> None:
        self._failures.pop(name, None)
        self._successes[name] = self._successes.get(name, 0) + 1
        if self._successes[name] >= SUCCESSES_TO_LOG and self._failing.pop(name, set()):
            _log.info("collector %s works again", name)

    def _log_failure(self, name: str, error: Exception) -> None:
        """Log each kind of failure once, until the collector works again."""
        kinds = self._failing.setdefault(name, set())
        if type(error) in kinds:
            return
        kinds.add(type(error))
        text = _message(error)
        remedy = f"--no-collector.{_SWITCHES.get(name, name)} turns it off"
        if isinstance(error, NothingToCollect):
            _log.info("collector %s has nothing to collect: %s", name, text)
        elif isinstance(error, StillBusy):
            _log.info("collector %s is still busy: %s", name, text)
        elif isinstance(error, NoAnswer):
            _log.warning("collector %s %s; it is left out until it does; %s", name, text, remedy)
        elif isinstance(error, (Late, TooLate)):
            _log.warning("collector %s %s; a longer --sample.interval gives it more time; %s", name, text, remedy)
        else:
            _log.warning("collector %s fails: %s%s %s", name, text, "" if text.endswith("?") else ";", remedy)
            _log.debug("collector %s fails", name, exc_info=error)

    def _run(self) -> None:
        due = self._due = self._clock()
        while not self._stopped.is_set():
            self._deliver(self.tick(self._clock()))
            due = self._due = self._next(due)
            self._stopped.wait(due - self._clock())

    def _next(self, due: float) -> float:
        """Return the time of the tick after the one that was *due*: the first point of the grid still ahead."""
        passed = math.floor(max(0.0, self._clock() - due) / self.interval)
        for name in self._skipped:
            self._skipped[name] += passed
        return due + self.interval * (passed + 1)


def deadline(interval: float) -> float:
    """Return the seconds that a tick waits for one collector."""
    # Half the interval, so that two collectors that hang at once cost little more than one tick.
    return min(max(interval / 2, 0.25), 5.0)


def _drop_tracebacks(error: BaseException | None) -> None:
    # A traceback refers to the frames that refer to the outcomes: a cycle that keeps all samples of the tick until the next
    # garbage collection.
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _has_samples(outcome: Outcome) -> bool:
    return outcome.error is None or isinstance(outcome.error, Late)


def _state(error: Exception | None) -> dict[str, str]:
    if error is None:
        return {"state": "ok"}
    states = {NothingToCollect: "nothing", StillBusy: "busy", Late: "slow", TooLate: "slow", NoAnswer: "hangs"}
    return {"state": states.get(type(error), "fails"), "why": _message(error)}


def _message(error: Exception) -> str:
    """Return an error in one line; an `OSError` without its number."""
    if isinstance(error, OSError) and error.strerror:
        return file_error_text(error)
    text = " ".join(str(error).split())
    complete = (NothingToCollect, StillBusy, Late, TooLate, NoAnswer)
    return text if isinstance(error, complete) else f"{type(error).__name__}: {text}"
