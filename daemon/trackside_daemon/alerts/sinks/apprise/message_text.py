"""Text of a message: a title and a few plain lines."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from trackside_daemon.alerts.correlations import CORRELATION
from trackside_daemon.model.text import duration

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.sink import DaemonInfo, Message
    from trackside_daemon.model.records import Alert

NAMED = 3  # alert names in a title; further ones are counted
SHOWN = 10  # alerts with their texts in a body; further ones are counted
LONGEST = 1000  # characters of a summary or description

ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"


def title(message: Message, daemon: DaemonInfo) -> str:
    """Return a title such as ``[firing:2] run NAME: NonFinite, LossSpike``."""
    alerts = message.alerts
    state = "resolved" if all(alert.ended is not None for alert in alerts) else "firing"
    counted = [alert for alert in alerts if (alert.ended is None) is (state == "firing")]
    run = next((_without_markup(alert.labels["run"]) for alert in alerts if "run" in alert.labels), "")
    names = list(Counter(alert.alert for alert in counted))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"[{state}:{len(counted)}] {_subject(run, daemon)}: {', '.join(names[:NAMED])}{more}"


def body(message: Message, daemon: DaemonInfo) -> str:
    """Return the texts of the new alerts, then the names of those that still fire."""
    parts = [_paragraph(alert, daemon) for alert in message.alerts[:SHOWN]]
    if len(message.alerts) > SHOWN:
        parts.append(f"and {len(message.alerts) - SHOWN} more alerts")
    if message.others:
        names = list(Counter(alert.alert for alert in message.others))
        parts.append(f"still firing: {', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''}")
    return "\n\n".join([*parts, f"on {daemon.instance}" + (f", {daemon.url}" if daemon.url else "")])


def _paragraph(alert: Alert, daemon: DaemonInfo) -> str:
    summary = _without_markup(alert.summary[:LONGEST])
    if alert.ended is not None:
        lasted = f"{duration(round(alert.ended - alert.started))}, from {_time(alert.started)} to {_time(alert.ended)}"
        return f"{alert.alert} ({alert.severity}) ended after {lasted}: {summary}"
    lines = [f"{alert.alert} ({alert.severity}): {summary}", _without_markup(alert.description[:LONGEST])]
    correlation = str(alert.evidence.get(CORRELATION, ""))
    lines.append(f"correlation id {_without_markup(correlation)}" if correlation else "")
    lines.append(f"{daemon.runbook}#{alert.alert.lower()}" if daemon.runbook else "")
    return "\n".join(line for line in lines if line)


def _without_markup(text: str) -> str:
    """Return a text of a training, changed so that no service reads a mention or a link in it.

    Services interpret ``<!channel>``, ``<@U1>`` and ``<https://host|text>`` (Slack), ``@everyone`` (Discord, Telegram,
    Mattermost), and ``[text](https://host)`` (Markdown). Escapes do not help: apprise restores mentions and links of
    Slack after it has escaped them, and even completes those without their ``<``.
    """
    text = re.sub(r"<(?=\S)", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", text).replace("|", "¦")
    text = re.sub(r"(?<=\S)>", "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}", text)
    text = re.sub(r"@(?=\S)", f"@{ZERO_WIDTH_SPACE}", text)
    return text.replace("](", f"]{ZERO_WIDTH_SPACE}(")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _subject(run: str, daemon: DaemonInfo) -> str:
    return f"run {run}" if run else f"machine {daemon.instance}"
