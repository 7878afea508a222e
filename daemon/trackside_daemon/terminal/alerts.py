"""Pane of the firing alerts, in the daemon's order: critical first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import duration
from trackside_daemon.terminal.formatting import pad, text_field, to_float
from trackside_daemon.terminal.styled_lines import SEVERITIES, Line, fit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Alert = Mapping[str, Any]


def render_alerts(alerts: Sequence[Alert], now: float, width: int, height: int) -> list[Line]:
    """Return *height* lines: the number of alerts by severity, and an alert per line."""
    lines: list[Line] = [_title(alerts)]
    longest = max((len(text_field(alert, "alert")) for alert in alerts), default=0)
    rows = height - 1
    visible = alerts if len(alerts) <= rows else alerts[: max(0, rows - 1)]
    lines += [_line(alert, now, min(longest, width // 4)) for alert in visible]
    if len(visible) < len(alerts) and rows > 0:
        lines.append([(f"+{len(alerts) - len(visible)} more: trackside alerts --firing", "dim")])
    return [fit(line, width) for line in (lines + [[]] * height)[:height]]


def style_of(alert: Alert) -> str:
    """Return the style of an alert."""
    severity = text_field(alert, "severity")
    return "dim" if alert.get("silenced") else severity if severity in SEVERITIES else "info"


def _title(alerts: Sequence[Alert]) -> Line:
    counts = [(sum(alert.get("severity") == severity for alert in alerts), severity) for severity in SEVERITIES]
    text = ", ".join(f"{count} {severity}" for count, severity in counts if count)
    return [("ALERTS ", "title"), (text or "none firing", "" if text else "dim")]


def _line(alert: Alert, now: float, name_width: int) -> Line:
    started = to_float(alert.get("started"))
    age = duration(None if started is None else max(0.0, now - started))
    style = style_of(alert)
    return [
        (pad("silenced" if alert.get("silenced") else text_field(alert, "severity"), 8), style),
        (" " + pad(text_field(alert, "alert"), name_width), style),
        (" " + pad(age, 11, right=True), "dim"),
        (f" {_description(alert)}", ""),
    ]


def _description(alert: Alert) -> str:
    """Return the summary, after the run's name if the summary does not contain it."""
    summary = text_field(alert, "summary")
    subject = text_field(alert, "name") or text_field(alert, "run") or text_field(alert, "subject")
    return f"{subject}: {summary}" if subject and subject not in summary else summary
