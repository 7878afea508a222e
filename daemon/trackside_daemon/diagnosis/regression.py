"""PerformanceRegression: a live run that has been slower than its baseline for some minutes.

Once a minute a thread compares the duration of a step over the whole run with that of its baseline, as `trackside why` does, so
that a slow disk does not delay the pipeline.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alerts.rules.evaluation import TICK
from trackside_daemon.diagnosis.baseline import find_baseline
from trackside_daemon.diagnosis.comparison import Effect, compared
from trackside_daemon.diagnosis.measures import read_measures
from trackside_daemon.history.read.series import LogTails
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.text import duration
from trackside_daemon.model.troubles import TROUBLES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trackside_daemon.history.read.series import Readable
    from trackside_daemon.model.finding import Severity
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.model.records import Alert

ALERT = "PerformanceRegression"
EVERY = 60.0  # seconds between two comparisons
AFTER = 300.0  # seconds for which a run must be slower: a minute of evaluation or of another's work is no regression
MOST = 64  # live runs that are compared, the newest ones
log = logging.getLogger("trackside")


class Pace(NamedTuple):
    """A live run and how its steps compare with those of its baseline.

    Attributes:
        name: Its name.
        baseline: The id of its baseline.
        pinned: The baseline is pinned, and not just the run before of this name.
        effect: The effect on the duration of a step.
    """

    name: str
    baseline: str
    pinned: bool
    effect: Effect


def read_paces(connection: sqlite3.Connection) -> dict[str, Pace]:
    """Return the paces of the live runs that have a baseline, by their ids.

    Raises:
        ValueError: A block is damaged.
    """
    rows = connection.execute(
        "SELECT uid, name FROM run WHERE ended IS NULL AND NOT deleted ORDER BY started DESC LIMIT ?", (MOST,)
    )
    tails, paces = LogTails(connection), {}
    for uid, name in rows.fetchall():
        if (chosen := find_baseline(connection, uid)) is None:
            continue
        one, usual = (read_measures(connection, run, tails).step_seconds for run in (uid, chosen.runs[0]))
        if one is not None and usual is not None:
            effect = compared(Effect("step_time", "seconds", "lower"), [one], [usual])
            paces[uid] = Pace(name, chosen.runs[0], chosen.chosen == "pinned", effect)
    return paces


class Regressions:
    """Finding source that follows the live runs.

    Args:
        history: The history.
        ratio: Duration of a step from which a run is slower, as a multiple of the baseline's; the interval must be above 1 too.
        clock: Monotonic clock, in seconds.
        wall: Unix time, in seconds, for the findings.
    """

    def __init__(
        self,
        history: Readable,
        ratio: float = 1.05,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._history = history
        self._ratio = ratio
        self._clock, self._wall = clock, wall
        self._next = 0.0
        self._thread: threading.Thread | None = None
        self._paces: Mapping[str, Pace] | None = None
        self._since: dict[str, float] = {}
        self._firing: dict[str, Finding] = {}
        self._restored: list[Finding] = []

    def restore(self, alert: Alert) -> None:
        """Continue an alert that fired when an earlier daemon ended, until a comparison ends it."""
        if alert.alert == ALERT:
            labels = tuple(sorted(alert.labels.items()))
            finding = Finding(ALERT, "warning", labels, self._wall(), alert.summary, alert.description, run=alert.run)
            self._restored.append(finding._replace(severity="info" if alert.severity == "info" else "warning"))

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

    def _read(self) -> None:
        try:
            with self._history.reading() as connection:
                self._paces = read_paces(connection)
        except Exception as error:  # noqa: BLE001  a damaged file, or values that no one foresaw: the daemon must go on
            log.debug("live runs cannot be compared with their baselines: %r", error)

    def _judge(self, paces: Mapping[str, Pace]) -> Iterator[Finding]:
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

    def _finding(self, run: str, pace: Pace, lasting: float) -> Finding:
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
