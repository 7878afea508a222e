"""Sessions, their messages, and a stand-in for the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside.environment import process_info as process_info_module
from trackside.transport.session import Session
from trackside.transport.spool import SpoolLimits
from trackside.wire import Bye, Clock, Envelope, Identity, Pushes, Skip, decode_body, open_envelope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside.transport.outbox import Outbox, Pending

CLOCK = Clock(wall=10**18, monotonic=10**12)


def later(seconds: float) -> Clock:
    """Return `CLOCK` plus *seconds*."""
    return Clock(CLOCK.wall, CLOCK.monotonic + round(seconds * 1e9))


NO_DISK = Path("/dev/null/spool")
"""Where nothing can be written."""


def a_session(spool: Path | None = None, **limits: int) -> Session:
    return Session(Identity("run", "name"), '{"lr": 0.1}', ("tag",), 100, spool, limits=SpoolLimits(**limits))


def forget_process_info() -> None:
    """Let the facts about this process be found out anew."""
    process_info_module._process_info.cache_clear()


def push(session: Session, values: Mapping[Any, float], step: int | None = None, time: int = 0) -> None:
    session.rows.append((time, step, dict(values)))


def train(session: Session, seconds: int) -> None:
    """Push a value per second, its number, and drain each."""
    for second in range(seconds):
        push(session, {"loss": second}, second)
        session.drain(later(second))


def left_behind(spool: Path, seconds: int = 1, **limits: int) -> tuple[Session, Path]:
    """Return a session that has ended without a daemon, and its last segment."""
    session = a_session(spool, **limits)
    train(session, seconds)
    session.retire(later(seconds))
    return session, max(spool.glob(f"{session.id.hex()}.*.spool"))


def read(message: Pending) -> tuple[Envelope, Any]:
    envelope = open_envelope(message.frames)
    return envelope, decode_body(envelope.kind, message.frames[2])


def batches(session: Session) -> list[Pushes]:
    return [body for _, body in map(read, session.pending) if isinstance(body, Pushes)]


def rows(pushes: Pushes) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield step, time and values of each row."""
    for block in pushes.blocks:
        steps, times, values = block.columns()
        width = len(block.keys)
        for number, (step, time) in enumerate(zip(steps, times, strict=True)):
            yield step, time, dict(zip(block.keys, values[number * width : (number + 1) * width], strict=True))


def pushed(session: Session) -> list[tuple[int, int, dict[str, float]]]:
    return [row for batch in batches(session) for row in rows(batch)]


def send(session: Outbox) -> list[Pending]:
    """Send all messages that the window permits; return them."""
    sent = []
    while (message := session.next_to_send()) is not None:
        session.sent(message)
        sent.append(message)
    return sent


def numbers(messages: list[Pending]) -> list[int]:
    return [message.number for message in messages]


class Daemon:
    """A daemon's in-order rule: it accepts only the next message, and in a crash forgets what is not committed."""

    def __init__(self) -> None:
        self.committed = 0
        self.values: list[float] = []
        self.gaps: list[tuple[int, int]] = []
        self.skips: list[Skip] = []
        self.ended = False
        self._accepted: list[tuple[int, Any]] = []

    def receive(self, message: Pending) -> None:
        envelope, body = read(message)
        expected = self._accepted[-1][0] + 1 if self._accepted else self.committed + 1
        first = body.first if isinstance(body, Skip) else envelope.number
        if envelope.number >= expected and first <= expected:
            self._accepted.append((envelope.number, body))

    def commit(self) -> int:
        """Commit all accepted messages; return the number to acknowledge."""
        for number, body in self._accepted:
            if isinstance(body, Pushes):
                self.values += [value for _, _, values in rows(body) for value in values.values()]
            elif isinstance(body, Skip):
                self.gaps.append((self.committed + 1, number))
                self.skips.append(body)
            self.ended = self.ended or isinstance(body, Bye)
            self.committed = number
        self._accepted = []
        return self.committed

    def crash(self) -> None:
        self._accepted = []


def fill(session: Session, count: int) -> None:
    """Push *count* batches of nearly 256 KiB with 4096 values, each drained separately."""
    for number in range(count):
        for row in range(8):
            push(session, {f"k{key}": number for key in range(512)}, 8 * number + row)
            push(session, {"k": number, f"{number}" + "x" * 28_000: number}, 8 * number + row)
        session.drain(CLOCK)
