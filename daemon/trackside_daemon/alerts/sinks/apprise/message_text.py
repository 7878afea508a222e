"""A message as people read it: a title and some plain lines."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.sink import About, Message
    from trackside_daemon.model.records import Alert

NAMED = 3
SHOWN = 10
"""So many alerts are named in the title, and so many written out; more are counted."""

LONGEST = 1000
"""Characters of a summary or description."""


def title(message: Message, about: About) -> str:
    """``[firing:2] run NAME: NonFinite, LossSpike``."""
    alerts = message.alerts
    state = "resolved" if all(alert.ended is not None for alert in alerts) else "firing"
    told = [alert for alert in alerts if (alert.ended is None) is (state == "firing")]
    run = next((alert.labels["run"] for alert in alerts if "run" in alert.labels), "")
    names = list(Counter(alert.alert for alert in told))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"[{state}:{len(told)}] {_where(run, about)}: {', '.join(names[:NAMED])}{more}"


def body(message: Message, about: About) -> str:
    """What is new, then what fires still."""
    parts = [_paragraph(alert, about) for alert in message.alerts[:SHOWN]]
    if len(message.alerts) > SHOWN:
        parts.append(f"and {len(message.alerts) - SHOWN} more alerts")
    if message.others:
        names = list(Counter(alert.alert for alert in message.others))
        parts.append(f"still firing: {', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''}")
    return "\n\n".join([*parts, f"on {about.instance}" + (f", {about.url}" if about.url else "")])


def _paragraph(alert: Alert, about: About) -> str:
    if alert.ended is not None:
        lasted = f"{alert.ended - alert.started:.0f} s, from {_moment(alert.started)} to {_moment(alert.ended)}"
        return f"{alert.alert} ({alert.severity}) is over after {lasted}; it was: {alert.summary[:LONGEST]}"
    lines = [f"{alert.alert} ({alert.severity}): {alert.summary[:LONGEST]}", alert.description[:LONGEST]]
    lines.append(f"{about.runbook}#{alert.alert.lower()}" if about.runbook else "")
    return "\n".join(line for line in lines if line)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _where(run: str, about: About) -> str:
    return f"run {run}" if run else f"machine {about.instance}"
