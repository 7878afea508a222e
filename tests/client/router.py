"""A daemon whose messages a test controls, and the decoded messages of clients."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import zmq
from processes import DEADLINE, eventually

from trackside.totals.phases import PhaseMark
from trackside.wire import Envelope, Pushes, decode_body, encode, open_envelope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trackside import Run
    from trackside.transport.session import Session
    from trackside.wire import Body, Totals, TrainingEvent, Welcome

Row = tuple[int, dict[str, float]]
"""A step and the values pushed in it."""


class Message(NamedTuple):
    """A message from a client; *peer* is the client's connection."""

    peer: bytes
    kind: str
    session: bytes
    number: int
    body: Any


class Router:
    """A ROUTER socket.

    Args:
        endpoint: The endpoint to bind.

    Attributes:
        endpoint: The endpoint that was bound.
    """

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.router_mandatory = True
        self._socket.bind(endpoint)
        self.endpoint: str = self._socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def next(self, *, passing: Iterable[str] = ("beat",), within: float = DEADLINE) -> Message | None:
        """Return the next message whose kind is not in *passing*, or None if none arrives *within* so many seconds."""
        while self._socket.poll(round(within * 1000)):
            peer, *frames = self._socket.recv_multipart()
            envelope = open_envelope(frames)
            if envelope.kind not in passing:
                return Message(
                    peer, envelope.kind, envelope.session, envelope.number, decode_body(envelope.kind, frames[2])
                )
        return None

    def expect(self, kind: str, *, passing: Iterable[str] = ("beat",)) -> Message:
        """Return the next message and assert its kind."""
        message = self.next(passing=passing)
        assert message is not None, f"no {kind} came"
        assert message.kind == kind
        return message

    def answer(self, to: Message, kind: str, number: int = 0, body: Body = None) -> None:
        """Answer the session of a message."""
        self.send(to.peer, encode(Envelope(kind, to.session, number), body))

    def send(self, peer: bytes, frames: list[bytes]) -> None:
        """Send any frames to a connection."""
        self._socket.send_multipart([peer, *frames])

    def welcome(self, number: int = 0) -> Message:
        """Receive a hello, and welcome it."""
        hello = self.expect("hello")
        self.answer(hello, "welcome", number)
        return hello

    def serve(self, ends: int = 1, welcome: Welcome | None = None) -> dict[bytes, list[Message]]:
        """Welcome and acknowledge all until *ends* sessions have sent bye; return their messages, without beats.

        The *welcome* is that of a daemon of this version; without one it is that of an older daemon.
        """
        reported: dict[bytes, list[Message]] = {}
        while ends:
            message = self.next()
            assert message is not None, f"no bye came, but {reported}"
            reported.setdefault(message.session, []).append(message)
            if message.kind == "hello":
                self.answer(message, "welcome", message.number, welcome)
            else:
                self.answer(message, "ack", message.number)
            ends -= message.kind == "bye"
        return reported

    def close(self) -> None:
        """Close the socket."""
        self._context.destroy(linger=0)


def rows(pushes: Pushes) -> Iterator[Row]:
    """Yield the rows of a batch."""
    for block in pushes.blocks:
        steps, _, values = block.columns()
        width = len(block.keys)
        for number, step in enumerate(steps):
            yield step, dict(zip(block.keys, values[number * width : (number + 1) * width], strict=True))


def pushed(messages: Iterable[Message]) -> list[Row]:
    """Return the rows of all batches among *messages*."""
    return [row for message in messages if isinstance(message.body, Pushes) for row in rows(message.body)]


def marks(run: Run) -> list[str]:
    """Take the rows from the queue of an undrained run; return the beginnings and ends of phases, with their sign."""
    taken = [run.queue.session.rows.popleft() for _ in range(len(run.queue.session.rows))]
    return [f"{'+' if mark.enters else '-'}{mark.phase}" for _, mark, _ in taken if isinstance(mark, PhaseMark)]


def unsent_bodies(run: Run) -> list[Any]:
    """End a run that has no daemon: the messages that it would send."""
    run.finish()
    session = run.queue.session
    # On a busy machine the sender is not done when `finish` no longer waits for it.
    eventually(lambda: session.done or session.totals.pushes == 0)
    return [decode_body(open_envelope(frames).kind, frames[2]) for frames in _frames(session)]


def unsent_events(run: Run, *kinds: str) -> list[TrainingEvent]:
    """End a run that has no daemon: the events of some kinds that it would send."""
    batches = [body for body in unsent_bodies(run) if isinstance(body, Pushes)]
    return [event for batch in batches for event in batch.events if event.kind in kinds]


def unsent_rows(run: Run) -> tuple[list[Row], Totals]:
    """End a run that has no daemon: the rows that it would send, and its totals."""
    bodies = unsent_bodies(run)
    found = [row for body in bodies if isinstance(body, Pushes) for row in rows(body)]
    return found, bodies[-1].totals if bodies else run.queue.session.totals


def _frames(session: Session) -> Iterator[list[bytes]]:
    """Yield the messages that wait in memory, then those after them that only the spool has."""
    number = 0
    for pending in session.pending:
        number = pending.number
        yield pending.frames
    while record := session.spool.next_after(number):
        number = record.number
        yield record.frames


@contextmanager
def undrained(run: Run) -> Iterator[None]:
    """Keep the sender from draining the queue of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.queue.session, "drain", lambda _: None)
        yield
