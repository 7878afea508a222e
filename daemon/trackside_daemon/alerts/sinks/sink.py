"""What a sink is: it gives a message to those who tell people. What waits for it is its outbox's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.alerts.sinks.sink_filter import Wants
    from trackside_daemon.model.records import Alert, Notified

Again = Literal["soon", "later", "never"]
"""When to try again: with a growing back-off, once a minute since a person must mend it, or not with this message."""


class SendError(Exception):
    """A message was not taken. The text is one line without secrets.

    Attributes:
        again: When to try again.
    """

    def __init__(self, text: str, again: Again = "soon") -> None:
        super().__init__(text)
        self.again = again


class SinkError(Exception):
    """A sink cannot be used as it is configured; the text is one line that names the setting and the way out."""


class Message(NamedTuple):
    """What a sink is given at once.

    Attributes:
        group: The id of the run that it is about; empty for the machine.
        alerts: What is new: those that fire, the worst first, then those that are over.
        others: Those of the group that people know of, and that fire still; no infos.
        lines: Of each alert what is said of it, where the outbox knows that.
    """

    group: str
    alerts: tuple[Alert, ...]
    others: tuple[Alert, ...] = ()
    lines: tuple[str, ...] = ()


class About(NamedTuple):
    """What of this daemon a message carries.

    Attributes:
        instance: The machine's name.
        url: The dashboard's address, without its token.
        runbook: The page of runbooks, with a section for each alert; empty for none.
    """

    instance: str
    url: str = ""
    runbook: str = ""


class Outbox(Protocol):
    """What waits to be told, for one sink. Bounded; times are seconds of a clock that only goes forward.

    Attributes:
        wants: The alerts that the sink tells of; other settings change it. What waits and is none of them is not told.
        dropped: What was to be told and never will be: that an alert fires, gets worse or is over.
    """

    wants: Wants
    dropped: int

    def __len__(self) -> int:
        """How many alerts wait."""
        ...

    def restore(self, alert: Alert, now: float, *, told: Notified | None) -> None:
        """One that fired when a daemon before this one ended, or had ended of late; *told* is this sink's last word.

        So is what fires when a sink gets other `wants`; of what it knows already nothing changes.
        """
        ...

    def put(self, alert: Alert, now: float) -> None:
        """An alert, anew or as it is now."""
        ...

    def due(self) -> float | None:
        """When there is something to be sent; None for not before something is put."""
        ...

    def take(self, now: float, *, everything: bool = False) -> Message | None:
        """The next message that is due; with *everything* also one that is not yet."""
        ...

    def sent(self, message: Message, now: float) -> Sequence[Alert]:
        """It was taken; those of its alerts, as they were told, of which people did not know that."""
        ...

    def failed(self, message: Message, now: float, *, never: bool) -> None:
        """It was not taken, or nobody waits for that any more; with *never* it will not be."""
        ...


class Sink(Protocol):
    """One way to tell people.

    Attributes:
        name: As on /metrics and in the history.
        wants: The alerts that it tells of.
    """

    name: str
    wants: Wants

    def outbox(self) -> Outbox:
        """An empty one that suits it."""
        ...

    def send(self, message: Message) -> None:
        """Give a message to those who tell people; may take seconds. Called in several threads when it does not return.

        Raises:
            SendError: They did not take it.
        """
        ...
