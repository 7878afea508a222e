"""Gathers, in a thread of its own, what helps to understand an alert, and hands it back as an `AlertNote`."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.alerts.evidence.deaths import deaths
from trackside_daemon.alerts.evidence.gpus import gpus
from trackside_daemon.alerts.evidence.machine import cgroups, cpu, host, io, memory
from trackside_daemon.alerts.evidence.ranks import ranks, samples
from trackside_daemon.alerts.evidence.required import Part, wanted
from trackside_daemon.alerts.evidence.sources import Case
from trackside_daemon.alerts.evidence.stacks import stacks
from trackside_daemon.history.record.sanitize import clean, to_json
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert, AlertNote

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.alerts.evidence.sources import Sources

WAITING = 64
"""So many alerts wait; of more, the oldest go without evidence."""

KNOWN = 2000
"""So many that fire are remembered with how bad they are; the book has half as many."""

MOST_BYTES = 64 * 1024
"""Of one alert's evidence, as JSON."""

_GATHERED: dict[Part, Callable[[Case], dict[str, Any]]] = {
    "ranks": ranks,
    "samples": samples,
    "stacks": stacks,
    "deaths": deaths,
    "gpus": gpus,
    "memory": memory,
    "cpu": cpu,
    "io": io,
    "host": host,
    "cgroups": cgroups,
}

log = logging.getLogger("trackside")


class _Wanted(NamedTuple):
    """An alert that is to be looked into; what came after *until*, in Unix seconds, is no part of it."""

    alert: Alert
    until: float


class Evidence:
    """Told of alerts in the pipeline's thread, where it only queues them.

    Args:
        sources: Where to look.
        tell: Takes what was found to the history.
        wall: Unix time, in seconds.
        clock: Seconds of the monotonic clock.
    """

    def __init__(
        self,
        sources: Sources,
        tell: Callable[[Batch], None],
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources._replace(pause=self._pause)
        self._tell = tell
        self._wall = wall
        self._clock = clock
        self._known: OrderedDict[object, str] = OrderedDict()
        self._waiting: deque[_Wanted] = deque()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._failed = self._overran = False
        self._thread = threading.Thread(target=self._run, name="trackside-evidence", daemon=True)

    def start(self) -> None:
        """Begin to gather."""
        self._thread.start()

    def stop(self) -> None:
        """End; what waits goes without evidence."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def accept(self, batch: Batch) -> None:
        """Look into those of the alerts that have begun or got worse."""
        news = [one for record in batch.records if isinstance(record, Alert) and (one := self._news(record))]
        if not news:
            return
        with self._changed:
            self._waiting.extend(news)
            while len(self._waiting) > WAITING:
                self._waiting.popleft()
                if not self._overran:
                    log.warning("more than %d alerts wait for their evidence; the oldest go without", WAITING)
                self._overran = True
            self._changed.notify_all()

    def _news(self, alert: Alert) -> _Wanted | None:
        key = alert.alert, alert.run, alert.started, tuple(sorted(alert.labels.items()))
        before = self._known.pop(key, None)
        if alert.ended is not None:
            return None
        self._known[key] = alert.severity
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
        if before == alert.severity:
            return None
        return _Wanted(alert, alert.started if before is None else self._wall())

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping.is_set())
                if self._stopping.is_set():
                    return
                one = self._waiting.popleft()
            try:
                self._look_into(one)
            except Exception:  # a daemon without this piece of evidence is better than none
                if not self._failed:
                    log.exception("no evidence of %s; further failures are only noted", one.alert.alert)
                self._failed = True

    def _look_into(self, one: _Wanted) -> None:
        alert, evidence = one.alert, self.gather(one.alert, one.until)
        if evidence and not self._stopping.is_set():
            note = AlertNote(alert.alert, alert.started, alert.run, alert.labels, evidence)
            self._tell(Batch("evidence", records=[note]))

    def gather(self, alert: Alert, until: float) -> dict[str, Any]:
        """All that can be had of what is wanted; why the rest cannot is under ``missing``."""
        case = Case(alert, self._sources, self._clock(), self._wall(), until, [])
        found: dict[str, Any] = {}
        for part in wanted(alert.alert, dict(alert.labels)):
            try:
                found |= _GATHERED[part](case)
            except Exception as error:  # whatever cannot be had costs only itself
                case.missing.append(f"{part}: {type(error).__name__}")
                if not self._failed:
                    log.exception("the %s of %s cannot be gathered; further failures are only noted", part, alert.alert)
                self._failed = True
        return _bounded(found, case)

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)


def _bounded(found: dict[str, Any], case: Case) -> dict[str, Any]:
    """As the history will keep it, and so much of it as there is room for; the largest part goes first."""
    alert = case.alert
    kept = clean(AlertNote(alert.alert, alert.started, evidence=found))
    evidence = dict(kept.evidence) if isinstance(kept, AlertNote) else {}
    sizes = {name: len(to_json(value).encode()) for name, value in evidence.items()}
    while sum(sizes.values()) > MOST_BYTES - 2048:
        largest = max(sizes, key=lambda name: sizes[name])
        case.missing.append(f"{largest}: {sizes.pop(largest) / 1024:.0f} KiB are too many")
        del evidence[largest]
    return {**evidence, **({"missing": case.missing[:16]} if case.missing else {})}
