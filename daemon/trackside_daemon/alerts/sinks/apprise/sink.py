"""Messages by the library apprise. Its URLs are secrets: neither it nor we ever log them."""

from __future__ import annotations

import logging
import re
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.sinks import http_post
from trackside_daemon.alerts.sinks.apprise import message_text
from trackside_daemon.alerts.sinks.group_outbox import Grouping
from trackside_daemon.alerts.sinks.sink import SendError, SinkError
from trackside_daemon.alerts.sinks.sink_filter import Wants

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.apprise.settings import AppriseSection
    from trackside_daemon.alerts.sinks.sink import About, Message

SETTING = "alerts.sinks.apprise.urls-file"


class AppriseSink:
    """One URL: each is a sink of its own, so that what one has told is not told again when another fails.

    Args:
        section: The settings.
        name: See `_named`.
        service: apprise's own object for the URL.
        about: The daemon.
    """

    def __init__(self, section: AppriseSection, name: str, service: Any, about: About) -> None:
        self.name = name
        self.wants = Wants(section.severity, section.also)
        self._service = service
        self._about = about

    def outbox(self) -> Grouping:
        """See `Sink`."""
        return Grouping(self.wants)

    def send(self, message: Message) -> None:
        """See `Sink`."""
        over = all(alert.ended is not None for alert in message.alerts)
        critical = any(alert.severity == "critical" and alert.ended is None for alert in message.alerts)
        taken = self._service.notify(
            title=message_text.title(message, self._about),
            body=message_text.body(message, self._about),
            notify_type="success" if over else "failure" if critical else "warning",
        )
        if not taken:
            raise SendError("the service did not take the message; check its URL in urls-file, and the network")


def apprises(section: AppriseSection, about: About) -> list[AppriseSink]:
    """One for each URL in the file.

    Raises:
        SinkError: The library is not there, or the file cannot be used.
    """
    if not section.urls_file:
        return []
    try:
        from apprise import Apprise
    except ImportError:
        raise SinkError(f"{SETTING}: apprise is not installed; pip install 'trackside[apprise]'") from None
    _hush()
    found: list[AppriseSink] = []
    names: Counter[str] = Counter()
    for number, line in enumerate(http_post.secret(section.urls_file, SETTING).splitlines(), 1):
        url = line.strip()
        if not url or url.startswith("#"):
            continue
        service = Apprise()
        if not service.add(url):
            raise SinkError(f"{SETTING}: {section.urls_file}: line {number} is no URL that apprise knows")
        name = _named(url)
        names[name] += 1
        if names[name] > 1:
            name += f":{names[name]}"
        found.append(AppriseSink(section, name, service, about))
    if not found:
        raise SinkError(f"{SETTING}: {section.urls_file}: there is no URL in it")
    return found


def _named(url: str) -> str:
    """``apprise:``, the kind of service and some digits by which it stays known wherever in the file its line is.

    They are of the URL without what may be a password that can be guessed: names are shown to everybody.
    """
    kind, _, rest = url.partition("://")
    place = re.sub(r":[^@/]*@", "@", rest.partition("?")[0])
    return f"apprise:{kind.lower()}:{sha256(place.encode()).hexdigest()[:6]}"


def _hush() -> None:
    """It and what it sends by write addresses to the log when something is wrong."""
    for name in ("apprise", "urllib3", "requests"):
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False
