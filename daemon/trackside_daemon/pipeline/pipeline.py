"""The stages that every batch passes: two bounded queues, then state, history, detectors, alerts.

A push comes as two batches: one of samples, which changes the state, and one of records, for history and detectors.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from traceback import walk_tb

from trackside.log_once import LogOnce
from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.stages import BatchListener, FindingSource
from trackside_daemon.detectors.run_watch import RunWatch
from trackside_daemon.history.record.queue import record_size
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.model.families import daemon
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import AlertNote
from trackside_daemon.model.stall import Stall
from trackside_daemon.model.state import State

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


STAGES = ("state", "history", "detectors", "alerts", "listeners", "jsonl")
MAX_LOGGED = 64  # most kinds of failures that are logged
ALERTS_SECONDS = 1.0  # interval in which the active alerts get the time, while batches arrive

# Seconds after the start in which no rank is restored: then a thousand clients connect anew, and wait for acknowledgements.
RESTORE_AFTER = 2.0

_RESTORING = Batch("restoring")

log = logging.getLogger("trackside")


class Pipeline:
    """The thread that alone writes state, history, detectors and active alerts.

    Args:
        state: The newest value of every series.
        history: Stores runs, and acknowledges what it has committed.
        sources: Finding sources, in the order of their calls.
        alerts: The active alerts; None for no alerts.
        listeners: Receive, in this order, the alerts that change.
        batch_listeners: Receive every batch, after all others.
        stalls: Receives the stalls that finding sources detect.
        queue: The batches; None for a queue of its own.
        restore: Restores the detectors of one more rank from an earlier daemon; returns whether more may be left.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        state: State,
        history: HistoryRecorder,
        sources: Sequence[FindingSource] = (),
        alerts: ActiveAlerts | None = None,
        *,
        listeners: Sequence[BatchListener] = (),
        batch_listeners: Sequence[BatchListener] = (),
        stalls: Callable[[Sequence[Stall]], None] = lambda _: None,
        queue: BatchQueue | None = None,
        restore: Callable[[], bool] = bool,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._history = history
        self._sources = tuple(sources)
        self._watches = tuple(source for source in sources if isinstance(source, RunWatch))
        self._alerts = alerts
        self._listeners, self._batch_listeners = tuple(listeners), tuple(batch_listeners)
        self._stalls = stalls
        self._queue = queue or BatchQueue()
        self._restore = restore
        self._restores = True
        self._rests_until = 0.0
        self._wall = wall
        self._ticked = 0.0
        self._findings: list[Finding] = []
        self._began = 0.0
        self.failures = dict.fromkeys(STAGES, 0)
        self._logged = LogOnce(MAX_LOGGED)
        self._thread = threading.Thread(target=self._run, name="trackside-pipeline", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._rests_until = time.monotonic() + RESTORE_AFTER
        self._thread.start()

    def stop(self) -> None:
        """Process what is queued, and end the thread."""
        self._queue.stop()
        self._thread.join()

    def tick(self, batches: Sequence[Batch]) -> None:
        """Queue sampled batches, and those of the pipeline and the history about themselves."""
        history = Batch("history", self._history.writer.samples(), complete=True)
        self._queue.tick([*batches, self._failure_counts(), history])

    def push(self, batches: Sequence[Batch]) -> None:
        """Queue pushed batches; `has_room` returns whether to."""
        self._queue.push(batches)

    def has_room(self) -> bool:
        """Return whether neither the queue of pushes nor the history's is full."""
        return self._queue.has_room() and self._history.writer.has_room()

    def behind(self) -> float:
        """Return for how many seconds it has processed the current batch; 0 while it waits for the next."""
        began = self._began
        return time.monotonic() - began if began else 0.0

    def accept(self, batch: Batch) -> None:
        """Pass a batch through all stages. A stage that fails is counted, and the others continue."""
        # State first, so that /metrics is right even with a full disk or a broken detector.
        self._stage("state", self._state.update, batch)
        self._stage("history", self._history.accept, batch)
        if self._alerts is not None:
            for source in self._sources:
                self._stage("detectors", partial(self._detect, source), batch)
            self._stage("detectors", self._report_stalls, batch)
            self._stage("alerts", self._update_alerts, batch)
        for listener in self._batch_listeners:
            self._stage("listeners", listener.accept, batch)

    def _detect(self, source: FindingSource, batch: Batch) -> None:
        self._findings.extend(source.accept(batch))

    def _report_stalls(self, _: Batch) -> None:
        for watch in self._watches:
            if stalls := watch.changed_stalls():
                self._stalls(stalls)

    def _measure(self, _: Batch) -> None:
        for watch in self._watches:
            for batch in watch.changed_batches():
                self._state.update(batch)

    def _update_alerts(self, batch: Batch) -> None:
        """Pass the findings to the active alerts; what changes goes to state, history and listeners."""
        now, findings = self._wall(), self._findings
        notes = [record for record in batch.records if isinstance(record, AlertNote)]
        due = abs(now - self._ticked) >= ALERTS_SECONDS  # abs: the wall clock may be set back
        if self._alerts is None or not (findings or due or notes):
            return
        self._findings = []  # first: findings on which the alerts fail must not come again
        changes = self._alerts.accept(findings, now) if findings else []
        changes += self._alerts.conclude(notes) if notes else []
        if due:
            self._ticked = now
            self._stage("detectors", self._measure, batch)
            changes = [*changes, *self._alerts.tick(now)]
        for change in changes:
            self._stage("state", self._state.update, change)
            self._stage("history", self._history.accept, change)
            for listener in self._listeners:
                self._stage("listeners", listener.accept, change)

    def _stage(self, name: str, stage: Callable[[Batch], None], batch: Batch) -> None:
        try:
            stage(batch)
        except Exception as error:
            self.failures[name] += 1
            # Each kind once: a failure that somebody can cause must not hide all others.
            if self._logged.first((name, *_kind(error))):
                log.exception(
                    "stage %s failed on a batch of %s; further failures of this kind are only counted",
                    name,
                    batch.source,
                )

    def _failure_counts(self) -> Batch:
        later = self._history.writer.failures
        samples = [
            Sample(daemon.PIPELINE_FAILURES, (stage,), count + later.get(stage, 0))
            for stage, count in self.failures.items()
        ]
        return Batch("pipeline", samples, complete=True)

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._began = time.monotonic()
            self.accept(batch)
            self._began = 0.0

    def _next(self) -> Batch | None:
        """Return the next batch, None at the end; restore ranks of an earlier daemon before, as long as there are some."""
        while self._restores and not self._queue.wait(self._rests_until - time.monotonic()):
            began = time.monotonic()
            self._stage("detectors", self._restore_rank, _RESTORING)
            # Half of the time is left to batches, and to the threads that share Python's lock with this one.
            self._rests_until = 2 * time.monotonic() - began
        return self._queue.get()

    def _restore_rank(self, _: Batch) -> None:
        self._restores = False  # if it fails
        self._restores = self._restore()


def _kind(error: Exception) -> tuple[str, str, int]:
    """Return the type of an exception, and the file and line that raised it."""
    *_, (frame, line) = walk_tb(error.__traceback__)
    return type(error).__name__, frame.f_code.co_filename, line
