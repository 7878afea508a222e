"""The one road: every batch, of whatever source, passes here and in this order."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from trackside_daemon.alerts.registry import MeasuringSource
from trackside_daemon.model.metric import Batch, Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.alerts.active_alerts import ActiveAlerts
    from trackside_daemon.alerts.registry import AlertListener, FindingSource
    from trackside_daemon.history.recorder import Recorder
    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.state import State

FAILURES = Metric(
    "trackside_pipeline_failures_total", "counter", "Batches that a stage of the pipeline failed on.", ("stage",)
)
STAGES = ("state", "history", "detectors", "alerts", "told", "jsonl")
PUSHES_WAITING = 256
TICKS_WAITING = 64
BOOK_SECONDS = 1.0
"""The book is told the time so often, while anything passes here."""

log = logging.getLogger("trackside")


class Pipeline:
    """A thread that alone writes what remembers.

    Args:
        state: The newest of every series.
        history: Keeps runs; it acknowledges what it has committed.
        watchers: Asked in this order; one that fails is no other's loss.
        book: Decides what fires; None for nothing.
        told: Told in this order of what began, got worse or ended.
        wall: Unix time, in seconds.
    """

    def __init__(
        self,
        state: State,
        history: Recorder,
        watchers: Sequence[FindingSource] = (),
        book: ActiveAlerts | None = None,
        *,
        told: Sequence[AlertListener] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._history = history
        self._watchers = tuple(watchers)
        self._shows = tuple(one for one in watchers if isinstance(one, MeasuringSource))
        self._book = book
        self._told = tuple(told)
        self._wall = wall
        self._booked = 0.0
        self._alarms: list[Finding] = []
        self._ticks: deque[Batch] = deque(maxlen=TICKS_WAITING)
        self._pushes: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._took = 0.0
        self._failures = dict.fromkeys(STAGES, 0)
        self._thread = threading.Thread(target=self._run, name="trackside-pipeline", daemon=True)

    def start(self) -> None:
        """Begin to empty the queues."""
        self._thread.start()

    def stop(self) -> None:
        """Take what is queued, then end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def tick(self, batches: Sequence[Batch]) -> None:
        """Queue what was sampled. It goes before any push, so that a backlog of those never makes a GPU vanish."""
        with self._changed:
            self._ticks.extend(batches)
            self._ticks.append(self._own())
            self._ticks.append(Batch("history", self._history.writer.samples(), complete=True))
            self._changed.notify_all()

    def push(self, batches: Sequence[Batch]) -> None:
        """Queue what was pushed; `has_room` says when to."""
        with self._changed:
            self._pushes.extend(batches)
            self._changed.notify_all()

    def has_room(self) -> bool:
        """Whether neither the queue of pushes nor the history's is full."""
        return len(self._pushes) < PUSHES_WAITING and self._history.writer.has_room()

    def behind(self) -> float:
        """Seconds that it has been at one batch; 0 while it waits for the next."""
        took = self._took
        return time.monotonic() - took if took else 0.0

    def accept(self, batch: Batch) -> None:
        """Take one batch the whole way. Each stage fails alone, and is counted."""
        self._stage("state", self._state.update, batch)
        self._stage("history", self._history.accept, batch)
        if self._book is not None:
            for watcher in self._watchers:
                self._stage("detectors", partial(self._look, watcher), batch)
            self._stage("alerts", self._alert, batch)

    def _look(self, watcher: FindingSource, batch: Batch) -> None:
        self._alarms.extend(watcher.accept(batch))

    def _show(self, _: Batch) -> None:
        for watcher in self._shows:
            for batch in watcher.changed_batches():
                self._state.update(batch)

    def _alert(self, batch: Batch) -> None:
        """Tell the book what was found; what it makes of that goes to the state and the history."""
        now, alarms = self._wall(), self._alarms
        if self._book is None or not (alarms or abs(now - self._booked) >= BOOK_SECONDS):
            return
        self._alarms = []
        said = self._book.accept(alarms, now) if alarms else []
        if abs(now - self._booked) >= BOOK_SECONDS:
            self._booked = now
            self._stage("detectors", self._show, batch)
            said = [*said, *self._book.tick(now)]
        for words in said:
            self._stage("state", self._state.update, words)
            self._stage("history", self._history.accept, words)
            for one in self._told:
                self._stage("told", one.accept, words)

    def _stage(self, name: str, stage: Callable[[Batch], None], batch: Batch) -> None:
        try:
            stage(batch)
        except Exception:
            if not self._failures[name]:
                log.exception("stage %s failed on a batch of %s; further failures are only counted", name, batch.source)
            self._failures[name] += 1

    def _own(self) -> Batch:
        later = self._history.writer.failures
        samples = [Sample(FAILURES, (stage,), count + later.get(stage, 0)) for stage, count in self._failures.items()]
        return Batch("pipeline", samples, complete=True)

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._took = time.monotonic()
            self.accept(batch)
            self._took = 0.0

    def _next(self) -> Batch | None:
        """The next batch, waited for; None when there are none left after `stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ticks or self._pushes or self._stopping)
            return (self._ticks or self._pushes).popleft() if self._ticks or self._pushes else None
