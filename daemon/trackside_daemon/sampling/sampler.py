"""The tick: runs every collector, times it, and says how it went."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.model.metric import Batch, Metric, Sample
from trackside_daemon.sampling.collector_threads import Hands, NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.model.records import Record
    from trackside_daemon.sampling.collector_threads import Outcome

_log = logging.getLogger("trackside")

SUCCESS = Metric(
    "trackside_collector_success", "gauge", "1 when the collector's last run gave its samples, else 0.", ("collector",)
)
DURATION = Metric(
    "trackside_collector_duration_seconds",
    "gauge",
    "How long the collector's last run took.",
    ("collector",),
    "seconds",
)
LAST_SUCCESS = Metric(
    "trackside_collector_last_success_timestamp_seconds",
    "gauge",
    "Unix time of the collector's last success; absent while it has nothing to collect, as while GPUs are paused.",
    ("collector",),
    "seconds",
)
SKIPPED = Metric(
    "trackside_collector_skipped_total",
    "counter",
    "Ticks that the collector left out: its source was still busy with the last one, or the sampler with others.",
    ("collector",),
)

MISSES = 2
"""So many failures of a kind are news, without a success between: after one, what was sampled last is still served."""

STEADY = 10
"""So many successes in a row are news after a failure that was: one that now and then fails would fill the log."""

KEPT = 2
"""Intervals for which a collector's samples are served, lest one tick that it misses be a gap."""

_SWITCHES = {"nvml": "gpu"}
"""What a collector is switched off by where that is not its own name."""


class Late(Exception):  # noqa: N818 - its samples are there
    """A collector takes longer than a tick waits, and less than its samples are served; the message says how long."""


class TooLate(Exception):  # noqa: N818 - says what is so
    """A collector takes longer than its samples are served; the message says how long."""


class Sampler:
    """A thread that ticks on a fixed grid; a tick that was missed is skipped, never made up for.

    Args:
        collectors: Run one after another, in this order.
        deliver: Takes the batches of a tick, in the sampler's thread; it must neither block long nor raise.
        interval: Seconds between ticks. It may be set while the sampler runs, and holds from the next tick on.
        deadline: Seconds that one collector may take, after which the tick goes on without it; None for what `deadline`
            makes of the interval.
        reports: Asked after each tick for what collectors have seen happen, for the history.
        clock: Seconds of the monotonic clock, which a batch's ``until`` is in.
        wall: Unix time, in seconds.
    """

    metrics = (SUCCESS, DURATION, LAST_SUCCESS, SKIPPED)

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
        self._hands = Hands(clock, wall)
        self._deadline = deadline
        self._deliver = deliver
        self._reports = reports
        self._clock = clock
        self._wall = wall
        self._stopped = threading.Event()
        self._due = math.inf
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._last_success: dict[str, float] = {}
        self._failing: dict[str, set[type[Exception]]] = {}
        self._misses: dict[str, Counter[type[Exception]]] = {}
        self._well: dict[str, int] = {}
        self._skipped = {collector.name: 0 for collector in self._collectors}
        self._standings: dict[str, dict[str, str]] = {}

    def start(self) -> None:
        """Begins to tick, at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread: no tick begins any more, and the one that runs is waited for, at most 5 s."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._hands.end()

    def behind(self) -> float:
        """Seconds that its next tick is late, by more than it takes when all collectors hang at once."""
        limit = self._deadline or deadline(self.interval)
        return max(0.0, self._clock() - self._due - 2 * limit * len(self._collectors))

    def standings(self) -> dict[str, dict[str, str]]:
        """How each collector's last run went, by its name.

        Its ``state`` is ``ok``, ``nothing``, ``busy``, ``slow``, ``hangs`` or ``fails``; all but the first say ``why``.
        """
        return dict(self._standings)

    def tick(self, now: float) -> list[Batch]:
        """Runs every collector at *now*, in seconds of the monotonic clock.

        Returns:
            A batch of each collector that succeeded, an empty one of each that had nothing to collect, and one of the
            sampler about all of them.
        """
        until = now + KEPT * self.interval + 0.5
        batches: list[Batch] = []
        about: list[Sample] = []
        limit = self._deadline or deadline(self.interval)
        outcomes = self._hands.collect(self._collectors, limit)
        for name in (collector.name for collector in self._collectors):
            outcome = self._judged(outcomes[name], limit)
            about.append(Sample(DURATION, (name,), outcome.took))
            about.append(Sample(SUCCESS, (name,), float(_has_samples(outcome))))
            self._note(name, outcome)
            if _has_samples(outcome) or isinstance(outcome.error, NothingToCollect):
                batches.append(Batch(name, outcome.samples, complete=True, until=until, time=outcome.time))
        about += (Sample(LAST_SUCCESS, (name,), when) for name, when in self._last_success.items())
        about += (Sample(SKIPPED, (name,), times) for name, times in self._skipped.items())
        if records := self._reports():
            batches.append(Batch("reports", records=records))
        return [*batches, Batch("sampler", about, complete=True, until=until)]

    def _judged(self, outcome: Outcome, limit: float) -> Outcome:
        """What comes late is told a tick late, and too late not at all; it is said what would cure that."""
        if not outcome.late or outcome.error is not None:
            return outcome
        took = f"takes {outcome.took:.2f} s"
        if outcome.took > KEPT * self.interval:
            why = f"{took}, too long for ticks of {self.interval:g} s, and is left out"
            return outcome._replace(samples=[], error=TooLate(why))
        return outcome._replace(error=Late(f"{took} where a tick waits for {limit:.2f} s, and is told a tick late"))

    def _note(self, name: str, outcome: Outcome) -> None:
        """Keep how it went, and log what is news."""
        error = outcome.error
        self._standings[name] = _standing(error)
        if _has_samples(outcome):
            self._last_success[name] = outcome.time
        elif isinstance(error, NothingToCollect):  # it does not fail
            self._last_success.pop(name, None)
        if error is None:
            self._note_success(name)
            return
        self._well[name] = 0
        misses = self._misses.setdefault(name, Counter())
        misses[type(error)] += 1
        self._skipped[name] += isinstance(error, (StillBusy, NoAnswer, TooLate))
        if isinstance(error, NothingToCollect) or misses[type(error)] >= MISSES:
            self._log_failure(name, error)

    def _note_success(self, name: str) -> None:
        self._misses.pop(name, None)
        self._well[name] = self._well.get(name, 0) + 1
        if self._well[name] >= STEADY and self._failing.pop(name, set()):
            _log.info("collector %s works again", name)

    def _log_failure(self, name: str, error: Exception) -> None:
        """Once for each kind of failure, until the collector works again."""
        kinds = self._failing.setdefault(name, set())
        if type(error) in kinds:
            return
        kinds.add(type(error))
        text = _in_words(error)
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
        """When to tick after the tick that was *due*: the first time on its grid that has not passed."""
        passed = math.floor(max(0.0, self._clock() - due) / self.interval)
        for name in self._skipped:
            self._skipped[name] += passed
        return due + self.interval * (passed + 1)


def deadline(interval: float) -> float:
    """Seconds that a tick waits for one collector: two that hang at once cost little more than one tick."""
    return min(max(interval / 2, 0.25), 5.0)


def _has_samples(outcome: Outcome) -> bool:
    return outcome.error is None or isinstance(outcome.error, Late)


def _standing(error: Exception | None) -> dict[str, str]:
    if error is None:
        return {"state": "ok"}
    states = {NothingToCollect: "nothing", StillBusy: "busy", Late: "slow", TooLate: "slow", NoAnswer: "hangs"}
    return {"state": states.get(type(error), "fails"), "why": _in_words(error)}


def _in_words(error: Exception) -> str:
    """A failure in one line; what the kernel refused without its number."""
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror[0].lower() + error.strerror[1:]
        return f"{error.filename}: {reason}" if error.filename else reason
    text = " ".join(str(error).split())
    ours = (NothingToCollect, StillBusy, Late, TooLate, NoAnswer)
    return text if isinstance(error, ours) else f"{type(error).__name__}: {text}"
