"""Captures that nobody asks for: of a healthy run once, and when it becomes slow, so that the two can be compared."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from trackside_daemon.captures.captures import CaptureError, Request
from trackside_daemon.captures.summary.difference import difference
from trackside_daemon.model.capture import AlertLink
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert, AlertNote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trackside_daemon.model.capture import Capture
    from trackside_daemon.model.rank_process import RankProcess

CAUSES = frozenset(("SlowStep", "ThroughputRegression", "StragglerRank", "GpuUnderutilized", "DataLoaderBottleneck"))
AGAIN_SECONDS = 900.0  # least time between two captures of a run for one cause
WARM_UP_SECONDS = (
    120.0  # time from a run's first tick to its reference: compilation, caches and data loaders have settled
)
RUNS = 1024  # most runs that are remembered
CHANGES = 5  # changes that an alert gets

log = logging.getLogger("trackside")


class AutomaticCaptures:
    """Listener of alerts in the pipeline's thread, which never blocks, and of ticks.

    Args:
        ask: Begins a capture.
        processes: Returns the training processes of this machine.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        ask: Callable[[Request], Capture],
        processes: Callable[[], Iterable[RankProcess]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._processes = processes
        self._clock = clock
        self._captured: OrderedDict[tuple[str, str], float] = OrderedDict()  # when, by run and cause
        self._firing: dict[str, set[tuple[str, float]]] = {}
        self._healthy: OrderedDict[str, float] = OrderedDict()  # since when, by run; infinite once it has a reference

    def accept(self, batch: Batch) -> None:
        """Record each run for which one of `CAUSES` begins."""
        for record in batch.records:
            if not isinstance(record, Alert) or record.alert not in CAUSES or not record.run:
                continue
            key = record.alert, record.started
            firing = self._firing.setdefault(record.run, set())
            if record.ended is not None:
                firing.discard(key)
            elif key not in firing:
                firing.add(key)
                cause = AlertLink(record.alert, record.started, dict(record.labels))
                self._begin(record.run, record.alert, cause)

    def tick(self) -> None:
        """Record a reference of each run that has been healthy since its warm-up."""
        runs = {process.run_id for process in self._processes()}
        now = self._clock()
        for run in runs:
            since = self._healthy.setdefault(run, now)
            if self._firing.get(run):
                self._healthy[run] = max(since, now)
            elif now - since >= WARM_UP_SECONDS:
                self._healthy[run] = float("inf")
                self._begin(run, "", None)
        for ended in (self._healthy.keys() | self._firing.keys()) - runs:
            self._healthy.pop(ended, None)
            self._firing.pop(ended, None)

    def _begin(self, run: str, cause: str, link: AlertLink | None) -> None:
        now = self._clock()
        if now - self._captured.get((run, cause), -AGAIN_SECONDS) < AGAIN_SECONDS:
            return
        self._captured[run, cause] = now
        if len(self._captured) > RUNS:
            self._captured.popitem(last=False)
        attempt = next((process.attempt for process in self._processes() if process.run_id == run), 0)
        try:
            self._ask(Request(run, attempt, trigger="alert", cause=link))
        except CaptureError as error:
            log.info("run %s is not recorded for %s: %s", run, cause or "a reference", error)


def compare(capture: Capture, stored: Callable[[], Sequence[Capture]], publish: Callable[[Batch], object]) -> Capture:
    """Return a capture of an alert with what changed since the reference, and give that to the alert.

    Args:
        capture: A capture that was summarised.
        stored: Returns all captures that the history has, oldest first.
        publish: Receives batches of records.
    """
    if capture.cause is None or capture.kind != "profile":
        return capture
    summary = {**capture.summary}
    references = [one for one in stored() if one.run == capture.run and is_reference(one)]
    if references:
        summary["difference"] = difference(references[-1].summary, summary)
        summary["reference"] = references[-1].id
    changes = [change["text"] for change in summary.get("difference", ())][:CHANGES]
    evidence = {"capture": {"id": capture.id, "changes": changes}}
    alert, started, labels = capture.cause
    publish(Batch("captures", records=[AlertNote(alert, started, capture.run, labels, evidence)]))
    return replace(capture, summary=summary)


def is_reference(capture: Capture) -> bool:
    """Return whether a capture shows a healthy run."""
    return (capture.trigger, capture.cause, capture.kind, capture.state) == ("alert", None, "profile", "summarised")
