"""Sinks through the library apprise. Its URLs are secrets, so neither it nor this module may log them."""

from __future__ import annotations

import logging
import re
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.sinks.apprise import message_text
from trackside_daemon.alerts.sinks.group_outbox import GroupOutbox
from trackside_daemon.alerts.sinks.sink import SinkError
from trackside_daemon.alerts.sinks.sink_filter import SinkFilter
from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SendError

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.apprise.settings import AppriseSection
    from trackside_daemon.alerts.sinks.sink import DaemonInfo, Message

SETTING = "alerts.sinks.apprise.urls-file"


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

    def send(self, message: Message) -> None:
        """See `Sink`."""
        over = all(alert.ended is not None for alert in message.alerts)
        critical = any(alert.severity == "critical" and alert.ended is None for alert in message.alerts)
        accepted = (self._urgent if critical else self._service).notify(
            title=message_text.title(message, self._daemon),
            body=message_text.body(message, self._daemon),
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
