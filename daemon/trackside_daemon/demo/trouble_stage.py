"""A trouble of the demo: when it begins, and which alerts tell of it."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trackside_daemon.demo.troubles import Trouble
    from trackside_daemon.linux.child_process import ChildProcess

LEAST_STEPS = 100
"""A detector has to know what is usual before anything can be unusual."""


class Staging:
    """Sends a rank the signal that it is to go wrong, and reads what the daemon says then.

    Args:
        trouble: That is staged; None for nothing.
        ranks: Of the training; the last goes wrong.
        after: Seconds of training before it does.
        ask: Gets a page of the API; None when there is none.
        history: Where the demo's daemon keeps its history.
    """

    def __init__(
        self,
        trouble: Trouble | None,
        ranks: Sequence[ChildProcess],
        after: float,
        ask: Callable[[str], str | None],
        history: str,
    ) -> None:
        self.begun = False
        self._trouble = trouble
        self._ranks = ranks
        self._after = after
        self._ask = ask
        self._history = history
        self._trained: float | None = None
        self._at = 0.0
        self._said: dict[int, str] = {}
        self._found = False

    def look(self, steps: float) -> Iterator[str]:
        """What is to be said now that the training has made so many steps."""
        trouble, now = self._trouble, time.monotonic()
        if trouble is None:
            return
        if steps and self._trained is None:
            self._trained = now
        if not self.begun:
            if self._trained is not None and now - self._trained >= self._after and steps >= LEAST_STEPS:
                yield self._begin(trouble)
            return
        for alert in self._alerts():
            yield from self._told(trouble, alert)

    def _begin(self, trouble: Trouble) -> str:
        self.begun, self._at = True, time.time()
        self._ranks[-1].send(signal.SIGUSR1)
        return f"\n  Now it goes wrong: {trouble.what.format(last=len(self._ranks) - 1)}.\n"

    def _told(self, trouble: Trouble, alert: dict[str, Any]) -> Iterator[str]:
        """An alert that is news, and after the first that was waited for, where to look."""
        severity, before = alert["severity"], self._said.get(alert["id"])
        if severity in ("info", before):
            return
        self._said[alert["id"]] = severity
        if before is not None:
            yield f"\n  {alert['alert']} is {severity} now:\n    {alert['summary']}\n"
            return
        after = max(0.0, alert["started"] - self._at)
        yield f"\n  {alert['alert']} ({alert['severity']}) fires, {after:.1f} s after it went wrong:\n    {alert['summary']}\n"
        if alert["alert"] in trouble.alerts and not self._found:
            self._found = True
            yield (
                f"    more        trackside alerts show {alert['id']} --storage.path={self._history}\n"
                f"    all         trackside alerts --storage.path={self._history}\n"
                "    or          the dashboard, and trackside_alert_firing on /metrics\n\n"
                "  The demo goes on until Ctrl-C, which takes its history away: ask before, from another terminal.\n"
            )

    def _alerts(self) -> list[dict[str, Any]]:
        page = self._ask("/api/v1/alerts?limit=100")
        return list(json.loads(page)["alerts"]) if page else []
