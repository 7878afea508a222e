"""One client session in ingest: how far it has come, and the reference that later stages get."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.wire import Envelope, Nack, encode
from trackside_daemon.model.records import USER_ALERT, Event
from trackside_daemon.model.session import SessionRef

if TYPE_CHECKING:
    from trackside.wire import Bye, Clock, Identity, Pushes, TrainingAlert, TrainingEvent
    from trackside_daemon.model.records import Record
    from trackside_daemon.training.run import RankSession


class Receipt(NamedTuple):
    """The message to answer once a batch is committed.

    Attributes:
        refused: Why the message was refused; empty if it was accepted.
    """

    session: bytes
    number: int
    refused: str = ""


class IngestSession:
    """A client session: its messages, and what it belongs to.

    Attributes:
        ref: The session as later stages get it, resolved at its hello.
        training: The session in `Runs`; None before its first hello and for a session over a limit.
        greeted: Its hello was accepted; otherwise its next message is answered with ``hello?``.
        accepted: The last numbered message that was accepted; *committed* is the last that is written.
        offset: Seconds by which this machine's clock is ahead of the client's; 0 if both are the same clock.
        identity: The identity of its process, bounded; None before the first hello.
        stray: The identity of its process, while the session is over a limit of the page and its process has not ended.
        bye: The bye of a stray session.
        opened: A hash of its last `SessionOpened`; 0 if the history has none.
        announced: The detectors have a `SessionOpened` of it.
        over: It sent its bye to an earlier daemon and nothing but a hello since.
        peer: The ROUTER's name for the connection of its last message.
        heard_at: When that arrived, in monotonic seconds.
        refused: Reasons by number of refused messages whose nack the client may have missed.
        shift: Nanoseconds from its monotonic clock to Unix time, as of its last batch.
    """

    def __init__(self, id: bytes) -> None:  # noqa: A002  the wire's word
        self.ref = SessionRef(id)
        self.training: RankSession | None = None
        self.peer = b""
        self.heard_at = 0.0
        self.announced = False
        self._paused = 0.0
        self.restart()

    def restart(self) -> None:
        """Require another hello; what was accepted and not committed has to be sent again."""
        self.ref = SessionRef(self.ref.id)
        self.greeted = False
        self.accepted = 0
        self.committed = 0
        self.offset = 0.0
        self.identity: Identity | None = None
        self.stray: Identity | None = None
        self.bye: Bye | None = None
        self.opened = 0
        self.over = False
        self.refused: dict[int, str] = {}
        self.shift = 0

    @property
    def is_exported(self) -> bool:
        """True while its run is on the page and counts it."""
        return self.training is not None and self.training.attached

    def commit(self, number: int) -> None:
        """Note that all messages up to *number* are committed, by this daemon or an earlier one."""
        self.committed = max(self.committed, number)
        self.accepted = max(self.accepted, number)

    def announce(self, paused: float) -> bool:
        """Note a `SessionOpened` for the detectors, and return whether they had one before; *paused* as in `pause`."""
        again = self.announced
        if not again:
            self._paused = paused
        self.announced = True
        return again

    def pause(self, paused: float) -> float:
        """Return how much the session's total of paused seconds has grown."""
        grown = max(0.0, paused - self._paused)
        self._paused += grown
        return grown

    def answer(self, number: int) -> list[bytes]:
        """Return the ack of all messages up to *number*, or the nack of this one."""
        if number in self.refused:
            return [self.peer, *encode(Envelope("nack", self.ref.id, number), Nack(self.refused[number]))]
        return [self.peer, *encode(Envelope("ack", self.ref.id, number))]


def events(session: SessionRef, pushes: Pushes, shifted: int) -> list[Record]:
    """Return the events of a batch, then the user alerts that it raises."""

    def event(item: TrainingEvent | TrainingAlert, kind: str, fields: dict[str, Any]) -> Event:
        time = (item.time + shifted) / 1e9
        return Event(session.run, session.attempt, time, kind, session.rank, item.step, fields)

    happened = [event(item, item.kind, _fields(item.fields)) for item in pushes.events]
    raised = [
        event(notice, USER_ALERT, {"title": notice.title, "severity": notice.severity, "text": notice.text})
        for notice in pushes.alerts
    ]
    return [*happened, *raised]


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of an event, which should be a JSON object."""
    try:
        fields = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        fields = None
    return fields if isinstance(fields, dict) else {"text": text}


def shift(clock: Clock, offset: float) -> int:
    """Return nanoseconds from a client's monotonic clock to this machine's Unix time."""
    return clock.wall - clock.monotonic + round(offset * 1e9)
