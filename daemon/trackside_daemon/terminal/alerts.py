"""What fires, the worst first: severity in a word, and in its colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import duration
from trackside_daemon.terminal.formatting import cell, real, told
from trackside_daemon.terminal.styled_lines import SEVERITIES, Line, fitted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Alert = Mapping[str, Any]


def fired(alerts: Sequence[Alert], now: float, width: int, height: int) -> list[Line]:
    """So many lines: how many fire, and each in a line."""
    lines: list[Line] = [_title(alerts)]
    longest = max((len(told(one, "alert")) for one in alerts), default=0)
    rows = height - 1
    shown = alerts if len(alerts) <= rows else alerts[: max(0, rows - 1)]
    lines += [_line(one, now, min(longest, width // 4)) for one in shown]
    if len(shown) < len(alerts) and rows > 0:
        lines.append([(f"+{len(alerts) - len(shown)} more: trackside alerts --firing", "dim")])
    return [fitted(line, width) for line in (lines + [[]] * height)[:height]]


def ink(alert: Alert) -> str:
    """The colour of an alert."""
    severity = told(alert, "severity")
    return "dim" if alert.get("silenced") else severity if severity in SEVERITIES else "info"


def _title(alerts: Sequence[Alert]) -> Line:
    counts = [(sum(one.get("severity") == severity for one in alerts), severity) for severity in SEVERITIES]
    told_ = ", ".join(f"{count} {severity}" for count, severity in counts if count)
    return [("ALERTS ", "title"), (told_ or "none fires", "" if told_ else "dim")]


def _line(alert: Alert, now: float, name: int) -> Line:
    started = real(alert.get("started"))
    age = duration(None if started is None else max(0.0, now - started))
    colour = ink(alert)
    return [
        (cell("silenced" if alert.get("silenced") else told(alert, "severity"), 8), colour),
        (" " + cell(told(alert, "alert"), name), colour),
        (" " + cell(age, 7, right=True), "dim"),
        (f" {_about(alert)}", ""),
    ]


def _about(alert: Alert) -> str:
    """What it says, with the run's name before it where that is not in it."""
    summary = told(alert, "summary")
    subject = told(alert, "name") or told(alert, "run") or told(alert, "subject")
    return f"{subject}: {summary}" if subject and subject not in summary else summary
