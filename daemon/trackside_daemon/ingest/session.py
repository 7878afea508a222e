"""One client session as the socket knows it: how far it has come, and what it said beside numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.wire import Envelope, Nack, encode
from trackside_daemon.model.records import USER_ALERT, Event

if TYPE_CHECKING:
    from trackside.wire import Bye, Clock, Identity, Pushes, TrainingAlert, TrainingEvent
    from trackside_daemon.model.records import Record


class Receipt(NamedTuple):
    """What to tell a session, once a batch is committed.

    Attributes:
        refused: Why the batch could not be taken; empty when it could.
    """

    session: bytes
    number: int
    refused: str = ""


class Session:
    """Which of a session's messages have been accepted, and which are committed.

    Attributes:
        run: The id of its run, and *attempt* and *rank* of it.
        offset: Seconds by which this machine's clock is ahead of the client's; 0 where both have the same.
        identity: Of its process, bounded; None before it has greeted.
        late: Whoever speaks does so for a process that is gone: what it says is history, and not on the page.
        stray: Its process, while it is over a limit of the page and its end is not known.
        bye: What it has said at its end, of such a one.
        opened: A hash of what the history was told of it last.
        over: It had said its bye to a daemon before this one, and has not spoken since but to greet.
        peer: The ROUTER's name for the connection that it spoke on last.
        refused: Why, of the batches that were refused; those that the client may not have heard of.
        shift: Nanoseconds from its clock to Unix time, as of its last batch.
    """

    def __init__(self, id: bytes) -> None:  # noqa: A002  the field's word for it
        self.id = id
        self.run, self.attempt, self.rank = "", 0, 0
        self.offset = 0.0
        self.late = False
        self.identity: Identity | None = None
        self.stray: Identity | None = None
        self.bye: Bye | None = None
        self.opened = 0
        self.over = False
        self.peer = b""
        self.accepted = self.committed = 0
        self.heard_at = 0.0
        self.refused: dict[int, str] = {}
        self.shift = 0

    def commit(self, number: int) -> None:
        """Everything up to *number* is, here or by a daemon before this one."""
        self.committed = max(self.committed, number)
        self.accepted = max(self.accepted, number)

    def answer(self, number: int) -> list[bytes]:
        """The ack of everything up to *number*, or its nack."""
        if number in self.refused:
            return [self.peer, *encode(Envelope("nack", self.id, number), Nack(self.refused[number]))]
        return [self.peer, *encode(Envelope("ack", self.id, number))]


def told(session: Session, pushes: Pushes, shifted: int) -> list[Record]:
    """The events that came with a batch, and what it raised: whether that is an alert, the book decides."""
    where = session.run, session.attempt

    def event(said: TrainingEvent | TrainingAlert, kind: str, fields: dict[str, Any]) -> Event:
        return Event(*where, (said.time + shifted) / 1e9, kind, session.rank, said.step, fields)

    events = [event(one, one.kind, _fields(one.fields)) for one in pushes.events]
    words = [{"title": one.title, "severity": one.severity, "text": one.text} for one in pushes.alerts]
    return [*events, *(event(one, USER_ALERT, said) for one, said in zip(pushes.alerts, words, strict=True))]


def _fields(text: str) -> dict[str, Any]:
    """What an event says of itself, which should be a JSON object."""
    try:
        fields = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        fields = None
    return fields if isinstance(fields, dict) else {"text": text}


def shift(clock: Clock, offset: float) -> int:
    """Nanoseconds from a client's monotonic clock to this machine's Unix time."""
    return clock.wall - clock.monotonic + round(offset * 1e9)
