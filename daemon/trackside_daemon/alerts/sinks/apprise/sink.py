"""Sinks through the library apprise. Its URLs are secrets, so neither it nor this module may log them."""

import logging
import re
from collections import Counter
from hashlib import sha256
from typing import Any

from trackside_daemon.alerts.sinks.apprise.settings import AppriseSection
from trackside_daemon.alerts.sinks.group_outbox import GroupOutbox
from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkError, SinkFilter, SinkMessage
from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.model.families.alerts import CORRELATION
from trackside_daemon.model.records import Alert
from trackside_daemon.model.text import duration, some, utc

MAX_NAMES = 3  # alert names in a title; further ones are counted
MAX_ALERTS = 10  # alerts with their texts in a body; further ones are counted
MAX_TEXT_LENGTH = 1000  # characters of a summary or description

ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"
SETTING = "alerts.sinks.apprise.urls-file"


def title(message: SinkMessage, daemon: DaemonInfo) -> str:
    """Return a title such as ``[firing:2] run NAME: NonFinite, LossSpike``."""
    alerts = message.alerts
    state = "resolved" if all(alert.ended is not None for alert in alerts) else "firing"
    counted = [alert for alert in alerts if (alert.ended is None) is (state == "firing")]
    run = next((_without_markup(alert.labels["run"]) for alert in alerts if "run" in alert.labels), "")
    names = list(Counter(alert.alert for alert in counted))
    subject = f"run {run}" if run else f"machine {daemon.instance}"
    return f"[{state}:{len(counted)}] {subject}: {some(names, MAX_NAMES)}"


def body(message: SinkMessage, daemon: DaemonInfo) -> str:
    """Return the texts of the new alerts, then the names of those that still fire."""
    parts = [_paragraph(alert, daemon) for alert in message.alerts[:MAX_ALERTS]]
    if len(message.alerts) > MAX_ALERTS:
        parts.append(f"and {len(message.alerts) - MAX_ALERTS} more alerts")
    if message.others:
        names = list(Counter(alert.alert for alert in message.others))
        parts.append(f"still firing: {', '.join(names[:MAX_ALERTS])}{', …' if len(names) > MAX_ALERTS else ''}")
    return "\n\n".join([*parts, f"on {daemon.instance}" + (f", {daemon.url}" if daemon.url else "")])


def _paragraph(alert: Alert, daemon: DaemonInfo) -> str:
    summary = _without_markup(alert.summary[:MAX_TEXT_LENGTH])
    if alert.ended is not None:
        lasted = f"{duration(round(alert.ended - alert.started))}, from {utc(alert.started)} to {utc(alert.ended)}"
        return f"{alert.alert} ({alert.severity}) ended after {lasted}: {summary}"
    lines = [f"{alert.alert} ({alert.severity}): {summary}", _without_markup(alert.description[:MAX_TEXT_LENGTH])]
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


class AppriseSink:
    """Sink for one URL, so that a failure of another URL does not resend what this one has sent.

    Args:
        section: The settings.
        name: See `_sink_name`.
        service: Object of apprise for the URL.
        urgent: Another one, for critical alerts: apprise pauses between two messages of one object, often for seconds.
        daemon: This daemon.
    """

    def __init__(self, section: AppriseSection, name: str, service: Any, urgent: Any, daemon: DaemonInfo) -> None:
        self.name = name
        self.filter = SinkFilter(section.severity, section.also)
        self._service = service
        self._urgent = urgent
        self._daemon = daemon

    def outbox(self) -> GroupOutbox:
        """See `Sink`."""
        return GroupOutbox(self.filter)

    def send(self, message: SinkMessage) -> None:
        """See `Sink`."""
        over = all(alert.ended is not None for alert in message.alerts)
        critical = any(alert.severity == "critical" and alert.ended is None for alert in message.alerts)
        accepted = (self._urgent if critical else self._service).notify(
            title=title(message, self._daemon),
            body=body(message, self._daemon),
            notify_type="success" if over else "failure" if critical else "warning",
            body_format="text",  # otherwise services that send HTML, such as e-mail, send the text as HTML
        )
        # apprise returns False without a reason.
        if not accepted:
            raise SendError("the service did not accept the message; check its URL in urls-file, and the network")


def apprise_sinks(section: AppriseSection, daemon: DaemonInfo) -> list[AppriseSink]:
    """Return a sink for each URL in the file.

    Raises:
        SinkError: The library is not installed, or the file cannot be used.
    """
    if not section.urls_file:
        return []
    try:
        from apprise import Apprise
    except ImportError:
        raise SinkError(f"{SETTING}: apprise is not installed; pip install 'trackside[apprise]'") from None
    _disable_logs()
    sinks: list[AppriseSink] = []
    names: Counter[str] = Counter()
    for number, line in enumerate(http_request.read_secret(section.urls_file, SETTING).splitlines(), 1):
        url = line.strip()
        if not url or url.startswith("#"):
            continue
        service, urgent = Apprise(), Apprise()
        if not (service.add(url) and urgent.add(url)):
            raise SinkError(f"{SETTING}: {section.urls_file}: line {number} is not a URL that apprise supports")
        name = _sink_name(url)
        names[name] += 1
        # The hash leaves out secrets, so two URLs may have the same.
        if names[name] > 1:
            name += f":{names[name]}"
        sinks.append(AppriseSink(section, name, service, urgent, daemon))
    if not sinks:
        raise SinkError(f"{SETTING}: {section.urls_file}: the file has no URL")
    return sinks


def _sink_name(url: str) -> str:
    """Return ``apprise:``, the kind of service and a short hash, which stay the same if lines of the file move.

    Names are public, so the hash leaves out the password and the query, which could be guessed from it.
    """
    kind, _, rest = url.partition("://")
    place = re.sub(r":[^@/]*@", "@", rest.partition("?")[0])
    return f"apprise:{kind.lower()}:{sha256(place.encode()).hexdigest()[:6]}"


def _disable_logs() -> None:
    """Disable the logs of apprise and its HTTP libraries, which contain addresses when a message fails."""
    for name in ("apprise", "urllib3", "requests"):
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False
