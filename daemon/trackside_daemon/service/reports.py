"""The reports that the daemon writes by itself, and the directories of experiments, in a process of their own."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from pathlib import Path

from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents.request import MODULE, ReportRequest
from trackside_daemon.history.files.jsonl import folder
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import ENDED, BatchIngested, RunState

REPORT_SECONDS = 180.0  # the longest wait for one report: 60 seconds of a processor, at idle priority
SETTLE_SECONDS = 2.0  # from the end of a run: its last alerts follow it
WRITTEN_SECONDS = 5.0  # the longest wait for the history to write what is queued
LAST_SECONDS = 60.0  # the same at the end of a run, whose report is not written again
STOP_SECONDS = 20.0  # the longest delay of the daemon's end
PAUSE_SECONDS = 60.0  # between two writes of the directory of a run that lives
MAX_WAITING = 256  # most runs that wait; more end at once only when a cluster fails

log = logging.getLogger("trackside")


class Reports:
    """Writes a report of each run that ends, from the batches of the pipeline.

    Args:
        directory: Directory of the reports; None for none.
        experiments: Directory of the directories of runs; None for none.
        history: Directory of the history.
        prices: Returns the configured prices.
        flush: Waits until the history has written what is queued, at most some seconds.
        memory: Most bytes that the process of a report uses.
        every: Steps between two writes of a run's directory while it lives; 0 for its end alone.
        stop_seconds: See `STOP_SECONDS`.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        directory: Path | None,
        experiments: Path | None,
        history: Path,
        prices: Callable[[], CostSection],
        flush: Callable[[float], object],
        *,
        memory: int,
        every: int = 0,
        stop_seconds: float = STOP_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._experiments, self._history = directory, experiments, history
        self._every = every if experiments else 0
        self._parts: OrderedDict[str, int] = OrderedDict()  # the highest step by run, in units of `every`
        self._begun: dict[str, float] = {}  # when a directory was written last, of the runs that live
        self._ended: set[str] = set()
        self._error = ""
        self._prices, self._flush, self._memory, self._clock = prices, flush, memory, clock
        self._stop_seconds = stop_seconds
        self._due: OrderedDict[str, float] = OrderedDict()  # when, by run
        self._changed = threading.Condition()
        self._stop_by = inf
        self._thread = threading.Thread(target=self._run, name="trackside-reports", daemon=True)

    def file(self, run: str) -> Path | None:
        """Return the file of a run's report, by the run's id; None without reports."""
        return None if self._directory is None else self._directory / f"{folder(run)}.html"

    def link(self, run: str) -> str:
        """Return the words about a run's report for a text about its end; none without reports."""
        return f"report: {self.file(run)}" if self._directory else ""

    def accept(self, batch: Batch) -> None:
        """Queue the runs that have ended, and those that have come far enough."""
        ended = [record.run for record in batch.records if isinstance(record, RunState) and record.state in ENDED]
        if ended:
            with self._changed:
                for run in ended:
                    self._due[run] = self._clock() + SETTLE_SECONDS
                    self._ended.add(run)
                    self._parts.pop(run, None)
                while len(self._due) > MAX_WAITING:
                    gone = next((run for run in self._due if run not in self._ended), next(iter(self._due)))
                    del self._due[gone]
                    if gone in self._ended:
                        self._ended.remove(gone)
                        log.warning("run %s gets no report: more than %d wait", gone, MAX_WAITING)
                self._changed.notify_all()
        for record in batch.records if self._every else ():
            if isinstance(record, BatchIngested):
                for one in record.columns[-1:]:
                    if not one.aside and one.steps:
                        self._follow(record.session.run, one.steps[-1] // self._every)

    def _follow(self, run: str, part: int) -> None:
        """Queue a run that lives if it has come into a further part of its steps."""
        before = self._parts.get(run, 0)
        if part > before:
            with self._changed:
                self._parts[run] = part
                self._parts.move_to_end(run)
                while len(self._parts) > MAX_WAITING:
                    self._parts.popitem(last=False)
                if len(self._due) < MAX_WAITING:
                    self._due.setdefault(run, max(self._clock(), self._begun.get(run, -inf) + PAUSE_SECONDS))
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
            self._begun = {one: at for one, at in self._begun.items() if one in self._parts}
            self._begun[run] = self._clock()
            with self._changed:
                has_ended = run in self._ended
                self._ended.discard(run)
            self._flush(max(0.0, min(LAST_SECONDS, self._stop_by - self._clock())) if has_ended else WRITTEN_SECONDS)
            if has_ended and (file := self.file(run)):
                self._write(run, ReportRequest(str(self._history), run, str(file)), "report", logging.INFO)
            if self._experiments:
                request = ReportRequest(str(self._history), run, "", experiments=str(self._experiments))
                self._write(run, request, "directory", logging.INFO if has_ended else logging.DEBUG)

    def _next(self) -> str | None:
        """Return the next run that is due; None at the end."""
        with self._changed:
            while True:
                now, stops = self._clock(), self._stop_by < inf
                if stops and (not self._due or now >= self._stop_by):
                    for run in self._ended.intersection(self._due):
                        log.warning("run %s gets no report: the daemon stops", run)
                    return None
                if ready := [run for run, moment in self._due.items() if moment <= now or stops]:
                    # A run that lives is written again later.
                    due = next((run for run in ready if run in self._ended), ready[0])
                    del self._due[due]
                    return due
                first = min(self._due.values(), default=None)
                self._changed.wait(None if first is None else max(0.0, first - now))

    def _write(self, run: str, request: ReportRequest, what: str, level: int) -> None:
        """Write a report or a directory, and log where it is, or once why it could not be written."""
        request.prices = self._prices().model_dump(mode="json")
        try:
            with CallWorker(MODULE, str, memory=self._memory, name="its process") as worker:
                place = worker.ask(
                    request, REPORT_SECONDS, lambda: "the daemon stops" if self._clock() >= self._stop_by else ""
                )
        except WorkerFailed as error:
            text = f"run {run} gets no {what}: {error}"
            log.log(logging.ERROR if text != self._error else logging.DEBUG, "%s", text)
            self._error = text
        else:
            log.log(level, "%s of run %s: %s", what, run, place)
