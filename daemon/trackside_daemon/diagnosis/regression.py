"""PerformanceRegression: a live run that has been slower than its baseline for some minutes.

Once a minute a thread compares the duration of a step over the whole run with that of its baseline, as `trackside why` does, so
that a slow disk does not delay the pipeline.
"""

import logging
import sqlite3
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from trackside_daemon.alerts.rules.evaluation import TICK
from trackside_daemon.diagnosis.comparison import Baseline, Effect, compared, find_baseline
from trackside_daemon.diagnosis.measures import read_measures
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import LogTails, Readable
from trackside_daemon.model.families.training import STEPS
from trackside_daemon.model.finding import Finding, Severity
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert
from trackside_daemon.model.text import duration
from trackside_daemon.model.troubles import TROUBLES

Curves = dict[tuple[str, str], tuple[list[float], list[float]]]


ALERT = "PerformanceRegression"
POINTS = 1000  # most samples of a key of a baseline
EVERY = 60.0  # seconds between two comparisons
AFTER = 300.0  # seconds for which a run must be slower: a minute of evaluation or of another's work is no regression
MOST = 64  # live runs that are compared, the newest ones
log = logging.getLogger("trackside")


class PaceChange(NamedTuple):
    """A live run and how its steps compare with those of its baseline."""

    name: str
    baseline: str  # the id of its baseline
    pinned: bool  # the baseline is pinned, and not just the run before of this name
    effect: Effect  # the effect on the duration of a step


def _live(connection: sqlite3.Connection) -> Iterator[tuple[str, str, Baseline]]:
    """Yield the id, the name and the baseline of each live run that has one."""
    rows = connection.execute(
        "SELECT uid, name FROM run WHERE ended IS NULL AND NOT deleted ORDER BY started DESC LIMIT ?", (MOST,)
    )
    for uid, name in rows.fetchall():
        if (chosen := find_baseline(connection, uid)) is not None:
            yield uid, name, chosen


def read_paces(connection: sqlite3.Connection) -> dict[str, PaceChange]:
    """Return the paces of the live runs that have a baseline, by their ids.

    Raises:
        ValueError: A block is damaged.
    """
    tails, paces = LogTails(connection), {}
    for uid, name, chosen in _live(connection):
        one, usual = (read_measures(connection, run, tails).step_seconds for run in (uid, chosen.runs[0]))
        if one is not None and usual is not None:
            effect = compared(Effect("step_time", "seconds", "lower"), [one], [usual])
            paces[uid] = PaceChange(name, chosen.runs[0], chosen.chosen == "pinned", effect)
    return paces


def read_curves(connection: sqlite3.Connection, keys: Sequence[str]) -> Curves:
    """Return steps and values of *keys* of the lowest rank in the baseline of each live run, by run and key.

    Raises:
        ValueError: A block is damaged.
    """
    tails, curves = LogTails(connection), {}
    for uid, _, chosen in _live(connection):
        for found in reader.series(connection, chosen.runs[0], keys, tails=tails):
            points = [
                point
                for point in chart(connection, found.series, found.tail, points=POINTS).points
                if isfinite(point[4])
            ]
            curves[uid, found.series.key] = [point[0] for point in points], [point[4] for point in points]
    return curves


class Regressions:
    """Finding source that follows the live runs.

    Args:
        history: The history.
        ratio: Duration of a step from which a run is slower, as a multiple of the baseline's; the interval must be above 1 too.
        clock: Monotonic clock, in seconds.
        wall: Unix time, in seconds, for the findings.
        keys: Keys that `baseline_value` has.
    """

    def __init__(
        self,
        history: Readable,
        ratio: float = 1.05,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        keys: Sequence[str] = (),
    ) -> None:
        self._history = history
        self._keys = [key for key in keys if key != STEPS.name]
        self._curves: Curves = {}
        self._rates: dict[str, float] = {}
        self._ratio = ratio
        self._clock, self._wall = clock, wall
        self._next = 0.0
        self._thread: threading.Thread | None = None
        self._paces: Mapping[str, PaceChange] | None = None
        self._since: dict[str, float] = {}
        self._firing: dict[str, Finding] = {}
        self._restored: list[Finding] = []

    def restore(self, alert: Alert) -> None:
        """Continue an alert that fired when an earlier daemon ended, until a comparison ends it."""
        if alert.alert == ALERT:
            self._restored.append(alert.as_finding(self._wall()))

    def accept(self, batch: Batch) -> Sequence[Finding]:
        """Return what the last comparison has found, and begin the next one if it is due."""
        if batch.source != TICK or (self._thread is not None and self._thread.is_alive()):
            return ()
        found, self._restored = self._restored, []
        self._firing.update({finding.run: finding for finding in found})
        if self._paces is not None:
            found = [*found, *self._judge(self._paces)]
            self._paces = None
        if self._clock() >= self._next:
            self._next = self._clock() + EVERY
            self._thread = threading.Thread(target=self._read, name="trackside-regressions", daemon=True)
            self._thread.start()
        return found

    def baseline_value(self, run: str, key: str, step: float) -> float | None:
        """Return the value that the baseline of a live run had at a step, or its steps per second; None without one."""
        if key == STEPS.name:
            return self._rates.get(run)
        steps, values = self._curves.get((run, key), ([], []))
        place = bisect_right(steps, step) - 1
        return None if place < 0 else values[place]

    def _read(self) -> None:
        try:
            with self._history.reading() as connection:
                self._paces = paces = read_paces(connection)
                self._rates = {run: 1 / pace.effect.baseline for run, pace in paces.items() if pace.effect.baseline}
                if self._keys:
                    self._curves = read_curves(connection, self._keys)
        except Exception as error:  # noqa: BLE001  a damaged file, or values that no one foresaw: the daemon must go on
            log.debug("live runs cannot be compared with their baselines: %r", error)

    def _judge(self, paces: Mapping[str, PaceChange]) -> Iterator[Finding]:
        now = self._clock()
        slower = {
            run for run, pace in paces.items() if pace.effect.is_worse and (pace.effect.ratio or 0.0) >= self._ratio
        }
        self._since = {run: self._since.get(run, now) for run in slower}
        for run, since in self._since.items():
            if run not in self._firing and now - since >= AFTER:
                self._firing[run] = self._finding(run, paces[run], now - since)
                yield self._firing[run]
        for run in self._firing.keys() - slower:
            text = "is as fast as its baseline again" if run in paces else "has ended, or has no baseline any more"
            finding = self._firing.pop(run)
            yield finding._replace(time=self._wall(), over=True, summary=f"run {dict(finding.labels)['run']} {text}")

    def _finding(self, run: str, pace: PaceChange, lasting: float) -> Finding:
        effect = pace.effect
        usual, value, ratio = effect.baseline or 0.0, effect.value or 0.0, effect.ratio or 0.0
        between = "" if effect.low is None or effect.high is None else f" ({effect.low:.3g} to {effect.high:.3g})"
        which = f"its pinned baseline {pace.baseline}" if pace.pinned else f"run {pace.baseline}, the one before"
        severity: Severity = "warning" if pace.pinned else "info"
        return Finding(
            ALERT,
            severity,
            (("run", pace.name),),
            self._wall(),
            f"steps of run {pace.name} take {duration(value)}, {ratio:.3g} times{between} the {duration(usual)} of {which}",
            TROUBLES[ALERT].advice(run=pace.name),
            run=run,
            evidence={
                "value": value,
                "usual": usual,
                "since": self._wall() - lasting,
                "baseline": pace.baseline,
            },
        )
