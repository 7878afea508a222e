"""The overview as a whole: made of the newest values, of what fires, and of the little that the history alone knows."""

from __future__ import annotations

import logging
import socket
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon import __version__
from trackside_daemon.history.read.course import course
from trackside_daemon.history.read.live_values import total_steps
from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.web.api.overview import alerts, machine, runs
from trackside_daemon.web.api.overview.alerts import Numbers
from trackside_daemon.web.api.overview.loss_curve import SHOWN
from trackside_daemon.web.api.overview.runs import Known, Now

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.alerts.firing import Firing
    from trackside_daemon.history.database import Database
    from trackside_daemon.model.records import Alert
    from trackside_daemon.model.state import State
    from trackside_daemon.web.api.overview.rates import Attempt, Followed
    from trackside_daemon.web.api.overview.runs import Shown

log = logging.getLogger("trackside")


class Overview:
    """Makes it, in any thread. While the history cannot be read, the rest is told all the same.

    Args:
        state: The newest of every series.
        followed: Rates and courses.
        firing: What fires.
        database: The history.

    Attributes:
        makings: How often it was made.
    """

    def __init__(self, state: State, followed: Followed, firing: Firing, database: Database) -> None:
        self.makings = 0
        self._state, self._followed, self._firing, self._database = state, followed, firing, database
        self._name = socket.gethostname()
        self._lock = threading.Lock()
        self._numbers = Numbers()
        self._totals: dict[Attempt, int] = {}
        self._unreadable = False

    def make(self) -> dict[str, Any]:
        """As it is now."""
        now = Now(time.monotonic(), time.time())
        with self._lock:
            self.makings += 1
            firing = alerts.worst(every := self._firing.now())
            shown = runs.shown(self._state, now)
            self._followed.meet((one.attempt for one in shown), now.monotonic)
            self._totals = {one.attempt: total for one in shown if (total := self._totals.get(one.attempt))}
            self._recall(shown, firing)
            counts, ids = alerts.counted(every), {one.name: one.attempt[0] for one in shown}
            return {
                "time": now.wall,
                "version": __version__,
                "host": machine.host(self._state, now.monotonic, self._name, self._followed.host()),
                "gpus": machine.gpus(self._state, now.monotonic, ids),
                "runs": [self._row(now, one, counts.get(one.attempt[0], {})) for one in shown],
                "alerts": [alerts.told(one, self._numbers.of(one)) for one in firing],
            }

    def _row(self, now: Now, run: Shown, counts: Mapping[str, int]) -> dict[str, Any]:
        known = Known(self._totals.get(run.attempt), counts)
        return runs.row(self._state, now, run, self._followed, known)

    def _recall(self, shown: list[Shown], firing: list[Alert]) -> None:
        """Read what only the history knows, once: ids of alerts, total steps, and what runs did before this daemon."""
        progress = runs.GAUGES.index(runs.PROGRESS)
        endless = [one.attempt for one in shown if one.ranks[progress] and one.attempt not in self._totals]
        begun = [one for one in shown if self._followed.missing(one.attempt)]
        unknown = self._numbers.unknown(firing)
        if not (endless or begun or unknown):
            return
        try:
            with self._database.reading() as connection:
                self._numbers.look(connection, unknown)
                for attempt in endless:
                    if (total := total_steps(connection, *attempt)) is not None:
                        self._totals[attempt] = total
                for run in begun:
                    self._fill(connection, run)
            self._unreadable = False
        except (sqlite3.Error, ValueError) as error:
            if not self._unreadable:
                log.warning("%s cannot be read: %s", self._database.path, error)
            self._unreadable = True

    def _fill(self, connection: sqlite3.Connection, run: Shown) -> None:
        rank = min(run.ranks[runs.GAUGES.index(runs.LOSS)] or run.ranks[0], default=0)
        self._followed.fill(run.attempt, course(connection, (*run.attempt, rank), LOSSES, SHOWN))
