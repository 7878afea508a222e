"""What the training code itself raises with ``run.alert``: passed on, but not in a flood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.model.finding import SEVERITIES, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.model.finding import Severity
    from trackside_daemon.model.records import Event

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

    def evaluate(self, event: Event, name: str, clock: Clock) -> Iterator[Finding]:
        """What a rank of a run of this *name* raises."""
        if clock.now and clock.now - event.time > OLD:
            return
        last = self._last.get(event.run)
        if last is not None and clock.at - last < APART:
            self._left_out[event.run] = self._left_out.get(event.run, 0) + 1
            return
        self._last.pop(event.run, None)
        self._last[event.run] = clock.at
        if len(self._last) > RUNS:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._left_out.pop(oldest, None)
        yield self._finding(event, name, clock)

    def _finding(self, event: Event, name: str, clock: Clock) -> Finding:
        severity: Severity = next((one for one in SEVERITIES if one == event.fields.get("severity")), "warning")
        rank = str(event.rank or 0)
        left_out = self._left_out.pop(event.run, 0)
        more = f"{left_out} more came before it within a minute, and are in the history only." if left_out else ""
        step = "" if event.step is None else f" at step {event.step}"
        whose = f"Raised by rank {rank} of run {name}{step}."
        text = "\n".join(filter(None, (_cut(str(event.fields.get("text", "")), TEXT), whose, more)))
        labels = (("rank", rank), ("run", name))
        title = _cut(str(event.fields.get("title", "")), TITLE) or "an alert without a title"
        return Finding("UserAlert", severity, labels, event.time or clock.now, title, text, once=True, run=event.run)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
