"""The tick: runs every collector, times it, and says how it went."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.metric import Batch, Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.record import Record

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
    "Unix time of the collector's last success.",
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
"""So many failures in a row are news: after one, what was sampled last is still served."""


class Sampler:
    """A thread that ticks on a fixed grid; a tick that was missed is skipped, never made up for.

    Args:
        collectors: Run one after another, in this order.
        deliver: Takes the batches of a tick, in the sampler's thread; it must neither block long nor raise.
        interval: Seconds between ticks. It may be set while the sampler runs, and holds from the next tick on.
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
        reports: Callable[[], Sequence[Record]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval = interval
        self._collectors = tuple(collectors)
        self._deliver = deliver
        self._reports = reports
        self._clock = clock
        self._wall = wall
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._last_success: dict[str, float] = {}
        self._failing: dict[str, set[type[Exception]]] = {}
        self._misses: dict[str, int] = {}
        self._skipped = {collector.name: 0 for collector in self._collectors}

    def start(self) -> None:
        """Begins to tick, at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread: no tick begins any more, and the one that runs is waited for, at most 5 s."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def tick(self, now: float) -> list[Batch]:
        """Runs every collector at *now*, in seconds of the monotonic clock.

        Returns:
            A batch of each collector that succeeded, an empty one of each that had nothing to collect, and one of the
            sampler about all of them.
        """
        until = now + 2 * self.interval + 0.5
        batches: list[Batch] = []
        about: list[Sample] = []
        for collector in self._collectors:
            label = (collector.name,)
            begun = self._clock()
            samples, success = self._collect(collector)
            about.append(Sample(DURATION, label, self._clock() - begun))
            about.append(Sample(SUCCESS, label, float(success)))
            moment = self._wall()
            if success:
                self._last_success[collector.name] = moment
            if samples is not None:
                batches.append(Batch(collector.name, samples, complete=True, until=until, time=moment))
        about += (Sample(LAST_SUCCESS, (name,), when) for name, when in self._last_success.items())
        about += (Sample(SKIPPED, (name,), times) for name, times in self._skipped.items())
        if records := self._reports():
            batches.append(Batch("reports", records=records))
        return [*batches, Batch("sampler", about, complete=True, until=until)]

    def _collect(self, collector: Collector) -> tuple[list[Sample] | None, bool]:
        """What there is to say, None when that is not known this time; and whether it was collected."""
        try:
            samples = collector.collect()
        except Exception as error:  # noqa: BLE001 - whatever one collector does, the others go on
            self._misses[collector.name] = self._misses.get(collector.name, 0) + 1
            self._skipped[collector.name] += isinstance(error, StillBusy)
            if isinstance(error, NothingToCollect) or self._misses[collector.name] >= MISSES:
                self._log_failure(collector.name, error)
            return ([] if isinstance(error, NothingToCollect) else None), False
        self._misses.pop(collector.name, None)
        if self._failing.pop(collector.name, None):
            _log.info("collector %s works again", collector.name)
        return samples, True

    def _log_failure(self, name: str, error: Exception) -> None:
        """Once for each kind of failure, until the collector works again."""
        kinds = self._failing.setdefault(name, set())
        if type(error) in kinds:
            return
        kinds.add(type(error))
        text = " ".join(str(error).split())
        if isinstance(error, NothingToCollect):
            _log.info("collector %s has nothing to collect: %s", name, text)
        elif isinstance(error, StillBusy):
            _log.info("collector %s is still busy: %s", name, text)
        else:
            _log.warning("collector %s fails: %s: %s", name, type(error).__name__, text)
            _log.debug("collector %s fails", name, exc_info=error)

    def _run(self) -> None:
        due = self._clock()
        while not self._stopped.is_set():
            self._deliver(self.tick(self._clock()))
            due = self._next(due)
            self._stopped.wait(due - self._clock())

    def _next(self, due: float) -> float:
        """When to tick after the tick that was *due*: the first time on its grid that has not passed."""
        passed = math.floor(max(0.0, self._clock() - due) / self.interval)
        for name in self._skipped:
            self._skipped[name] += passed
        return due + self.interval * (passed + 1)
