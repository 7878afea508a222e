"""The overview document, made from the newest values, the firing alerts and a few values from the history."""

from __future__ import annotations

import logging
import socket
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon import __version__
from trackside_daemon.history.read.live_values import total_steps
from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.history.read.sparkline import sparkline
from trackside_daemon.web.api.overview import alerts, machine, runs
from trackside_daemon.web.api.overview.alerts import AlertIds
from trackside_daemon.web.api.overview.loss_curve import MAX_POINTS
from trackside_daemon.web.api.overview.ray import ray_json
from trackside_daemon.web.api.overview.runs import Moment, RunExtras

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.alerts.firing_alerts import FiringAlerts
    from trackside_daemon.history.database import Database
    from trackside_daemon.model.records import Alert
    from trackside_daemon.model.state import State
    from trackside_daemon.web.api.overview.rates import Attempt, RateTracker
    from trackside_daemon.web.api.overview.runs import VisibleRun

log = logging.getLogger("trackside")


class Overview:
    """Builds the overview, in any thread. When the history cannot be read, its values are missing.

    Args:
        state: The newest value of every series.
        rates: Rates and loss curves.
        firing: The firing alerts.
        database: The history.

    Attributes:
        build_count: Number of calls of `build`.
    """

    def __init__(self, state: State, rates: RateTracker, firing: FiringAlerts, database: Database) -> None:
        self.build_count = 0
        self._state = state
        self._rates = rates
        self._firing = firing
        self._database = database
        self._host = socket.gethostname()
        self._lock = threading.Lock()
        self._alert_ids = AlertIds()
        self._total_steps: dict[Attempt, int] = {}
        self._unreadable = False

    def build(self) -> dict[str, Any]:
        """Return the overview as of now, as JSON content."""
        now = Moment(time.monotonic(), time.time())
        # The API and the stream build in threads of a pool, and both change the caches.
        with self._lock:
            self.build_count += 1
            all_firing = self._firing.now()
            firing = alerts.worst(all_firing)
            visible = runs.visible_runs(self._state, now)
            self._rates.register((run.attempt for run in visible), now.monotonic)
            self._total_steps = {run.attempt: total for run in visible if (total := self._total_steps.get(run.attempt))}
            self._read_history(visible, firing)
            counts = alerts.count_by_run(all_firing)
            run_ids = {run.name: run.attempt[0] for run in visible}
            return {
                "time": now.wall,
                "version": __version__,
                "host": machine.host_json(self._state, now.monotonic, self._host, self._rates.host_rates()),
                "gpus": machine.gpus_json(self._state, now.monotonic, run_ids),
                "ray": ray_json(self._state, now.monotonic),
                "runs": [self._run_json(now, run, counts.get(run.attempt[0], {})) for run in visible],
                "alerts": [alerts.alert_json(alert, self._alert_ids.get(alert)) for alert in firing],
            }

    def _run_json(self, now: Moment, run: VisibleRun, counts: Mapping[str, int]) -> dict[str, Any]:
        extras = RunExtras(self._total_steps.get(run.attempt), counts)
        return runs.run_json(self._state, now, run, self._rates, extras)

    def _read_history(self, visible: list[VisibleRun], firing: list[Alert]) -> None:
        """Read missing values from the history: alert ids, total steps, and losses from before this daemon."""
        progress = runs.GAUGES.index(runs.PROGRESS)
        without_total = [run.attempt for run in visible if run.ranks[progress] and run.attempt not in self._total_steps]
        without_curve = [run for run in visible if self._rates.needs_history(run.attempt)]
        without_id = self._alert_ids.without_id(firing)
        if not (without_total or without_curve or without_id):
            return
        try:
            with self._database.reading() as connection:
                self._alert_ids.read(connection, without_id)
                for attempt in without_total:
                    if (total := total_steps(connection, *attempt)) is not None:
                        self._total_steps[attempt] = total
                for run in without_curve:
                    self._read_loss_curve(connection, run)
            self._unreadable = False
        except (sqlite3.Error, ValueError) as error:
            if not self._unreadable:
                log.warning("%s cannot be read: %s", self._database.path, error)
            self._unreadable = True

    def _read_loss_curve(self, connection: sqlite3.Connection, run: VisibleRun) -> None:
        rank = min(run.ranks[runs.GAUGES.index(runs.LOSS)] or run.ranks[0], default=0)
        self._rates.add_history(run.attempt, sparkline(connection, (*run.attempt, rank), LOSSES, MAX_POINTS))
