"""Schedule of the demo's trouble, and the alerts that it causes."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.families import alerts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trackside_daemon.demo.troubles import Trouble
    from trackside_daemon.linux.child_process import ChildProcess

MIN_STEPS = 100  # steps that a detector needs to learn the usual values, before it can find unusual ones


class TroubleStage:
    """Starts the trouble in one rank, and reports the daemon's alerts after it.

    Args:
        trouble: Trouble to start; None for none.
        ranks: Ranks of the training; the last one gets the trouble.
        after: Seconds of training before the trouble.
        get: Returns a page of the API by its path, or None if there is no answer.
        history: Directory of the history of the demo's daemon.
    """

    def __init__(
        self,
        trouble: Trouble | None,
        ranks: Sequence[ChildProcess],
        after: float,
        get: Callable[[str], str | None],
        history: str,
    ) -> None:
        self.begun = False
        self._trouble = trouble
        self._ranks = ranks
        self._after = after
        self._get = get
        self._history = history
        self._first_step_at: float | None = None
        self._begun_at = 0.0
        self._severities: dict[str, str] = {}
        self._has_expected_alert = False

    def poll(self, steps: float) -> Iterator[str]:
        """Yield the texts to print, given the number of steps so far."""
        trouble = self._trouble
        now = time.monotonic()
        if trouble is None:
            return
        if steps and self._first_step_at is None:
            self._first_step_at = now
        if not self.begun:
            if self._first_step_at is not None and now - self._first_step_at >= self._after and steps >= MIN_STEPS:
                yield self._begin(trouble)
            return
        for alert in self._read_alerts():
            yield from self._report(trouble, alert)

    def _begin(self, trouble: Trouble) -> str:
        self.begun = True
        self._begun_at = time.time()
        self._ranks[-1].send(signal.SIGUSR1)
        return f"  Now it goes wrong: {trouble.description.format(last=len(self._ranks) - 1)}.\n"

    def _report(self, trouble: Trouble, alert: dict[str, Any]) -> Iterator[str]:
        """Yield a new alert or severity, and after the first expected alert, how to see more."""
        name, severity, summary = alert["alert"], alert["severity"], alert["summary"]
        before = self._severities.get(alert["id"])
        if severity in ("info", before):
            return
        self._severities[alert["id"]] = severity
        if before is not None:
            yield f"  {name} is now {severity}:\n    {summary}\n"
            return
        delay = max(0.0, alert["started"] - self._begun_at)
        yield f"  Alert {name} ({severity}), {delay:.1f} s after it went wrong:\n    {summary}\n"
        if name in trouble.alerts and not self._has_expected_alert:
            self._has_expected_alert = True
            yield (
                f"    details      trackside alerts show {alert['id']} --storage.path={self._history}\n"
                f"    all alerts   trackside alerts --storage.path={self._history}\n"
                f"    or           the dashboard, and {alerts.FIRING.name} on /metrics\n\n"
                "  Run these commands in another terminal: the demo runs until Ctrl-C, and then deletes its history.\n"
            )

    def _read_alerts(self) -> list[dict[str, Any]]:
        page = self._get("/api/v1/alerts?limit=100")
        return list(json.loads(page)["alerts"]) if page else []
