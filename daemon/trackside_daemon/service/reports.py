"""The reports that the daemon writes by itself at the end of each run, in a process of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING

from trackside_daemon.documents.request import MODULE, Request
from trackside_daemon.history.files.jsonl import folder
from trackside_daemon.linux.worker_call import Worker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.records import ENDED, RunState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trackside_daemon.diagnosis.settings import CostSection
    from trackside_daemon.model.metric import Batch

SECONDS = 180.0  # the longest wait for one report: 60 seconds of a processor, at idle priority
SETTLE_SECONDS = 2.0  # from the end of a run: its last alerts follow it
WRITTEN_SECONDS = 5.0  # the longest wait for the history to write what is queued
STOP_SECONDS = 20.0  # the longest delay of the daemon's end
WAITING = 256  # most runs that wait; more end at once only when a cluster fails

log = logging.getLogger("trackside")


class Reports:
    """Writes a report of each run that ends, from the batches of the pipeline.

    Args:
        directory: Directory of the reports.
        history: Directory of the history.
        prices: Returns the configured prices.
        flush: Waits until the history has written what is queued, at most some seconds.
        memory: Most bytes that the process of a report uses.
        stop_seconds: See `STOP_SECONDS`.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        directory: Path,
        history: Path,
        prices: Callable[[], CostSection],
        flush: Callable[[float], object],
        *,
        memory: int,
        stop_seconds: float = STOP_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._history = directory, history
        self._prices, self._flush, self._memory, self._clock = prices, flush, memory, clock
        self._stop_seconds = stop_seconds
        self._due: OrderedDict[str, float] = OrderedDict()  # when, by run
        self._changed = threading.Condition()
        self._stop_by = inf
        self._thread = threading.Thread(target=self._run, name="trackside-reports", daemon=True)

    def file(self, run: str) -> Path:
        """Return the file of a run's report, by the run's id."""
        return self._directory / f"{folder(run)}.html"

    def link(self, run: str) -> str:
        """Return the words about a run's report for a text about its end."""
        return f"report: {self.file(run)}"

    def accept(self, batch: Batch) -> None:
        """Queue the runs that have ended."""
        ended = [record.run for record in batch.records if isinstance(record, RunState) and record.state in ENDED]
        if ended:
            with self._changed:
                for run in ended:
                    self._due[run] = self._clock() + SETTLE_SECONDS
                while len(self._due) > WAITING:
                    log.warning("run %s gets no report: more than %d wait", self._due.popitem(last=False)[0], WAITING)
                self._changed.notify_all()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write the reports that wait, for `STOP_SECONDS` at most, and end the thread."""
        with self._changed:
            self._stop_by = self._clock() + self._stop_seconds
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (run := self._next()) is not None:
            error = self._write(run)
            if error:
                log.error("run %s gets no report: %s", run, error)
            else:
                log.info("report of run %s: %s", run, self.file(run))

    def _next(self) -> str | None:
        """Return the next run that is due; None at the end."""
        with self._changed:
            while True:
                now, stops = self._clock(), self._stop_by < inf
                if stops and (not self._due or now >= self._stop_by):
                    for run in self._due:
                        log.warning("run %s gets no report: the daemon stops", run)
                    return None
                due = next((run for run, moment in self._due.items() if moment <= now or stops), None)
                if due is not None:
                    del self._due[due]
                    return due
                first = min(self._due.values(), default=None)
                self._changed.wait(None if first is None else max(0.0, first - now))

    def _write(self, run: str) -> str:
        """Write a report, and return why it could not be written; empty if it was."""
        self._flush(WRITTEN_SECONDS)
        prices = self._prices().model_dump(mode="json")
        request = Request(str(self._history), run, str(self.file(run)), prices)
        try:
            with Worker(MODULE, str, memory=self._memory, name="its process") as worker:
                worker.ask(request, SECONDS, lambda: "the daemon stops" if self._clock() >= self._stop_by else "")
        except WorkerFailed as error:
            return str(error)
        return ""
