"""What the training code itself raises with ``run.alert``: passed on, but not in a flood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alarm import SEVERITIES, Alarm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.alarm import Severity
    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.record import Alert

APART = 60.0
"""Seconds between two of a run; what comes between is counted."""

OLD = 900.0
"""Seconds after which what comes late is no news."""

TITLE, TEXT = 200, 4000
"""Characters that are kept."""

RUNS = 512


class UserAlerts:
    """`UserAlert`: title and text are words for people, and become no label."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def take(self, alert: Alert, name: str, clock: Clock) -> Iterator[Alarm]:
        """What a rank of a run of this *name* raises."""
        if clock.now and clock.now - alert.started > OLD:
            return
        last = self._last.get(alert.run)
        if last is not None and clock.at - last < APART:
            self._left_out[alert.run] = self._left_out.get(alert.run, 0) + 1
            return
        self._last.pop(alert.run, None)
        self._last[alert.run] = clock.at
        if len(self._last) > RUNS:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._left_out.pop(oldest, None)
        yield self._say(alert, name, clock)

    def _say(self, alert: Alert, name: str, clock: Clock) -> Alarm:
        severity: Severity = next((one for one in SEVERITIES if one == alert.severity), "warning")
        rank = str(alert.labels.get("rank", "0"))
        left_out = self._left_out.pop(alert.run, 0)
        more = f"{left_out} more came before it within a minute, and are in the history only." if left_out else ""
        step = f" at step {alert.labels['step']}" if "step" in alert.labels else ""
        whose = f"Raised by rank {rank} of run {name}{step}."
        text = " ".join(filter(None, (_cut(alert.summary, TEXT), whose, more)))
        labels = (("rank", rank), ("run", name))
        title = _cut(alert.alert, TITLE) or "an alert without a title"
        return Alarm("UserAlert", severity, labels, alert.started or clock.now, title, text, once=True, run=alert.run)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
