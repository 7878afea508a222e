"""A training with the real client session, whose messages reach a daemon in simulated time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from wire_messages import clock

from trackside.environment.clocks import Clocks
from trackside.environment.identity import identify
from trackside.totals.phases import PhaseMark
from trackside.transport import session as session_module
from trackside.transport.session import Session
from trackside.wire import Clock, decode_body, encode, open_envelope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from in_process_daemon import InProcessDaemon

SENT_EACH = 0.2  # seconds


class ScriptedTraining:
    """A training, which lets the time of the daemon pass.

    Args:
        daemon: The daemon.
        spool: The directory of its spool.
        sent_each: Seconds between its messages.
        identity: Fields of its identity.

    Attributes:
        moved: Seconds by which its wall clock was set forward.
        started: Seconds that its monotonic clock is ahead of the daemon's, as on another machine.
        silent: Nothing reaches the daemon: messages stay in the spool.
        session: The session.
    """

    def __init__(
        self,
        daemon: InProcessDaemon,
        spool: Path,
        run: str = "train",
        *,
        moved: float = 0.0,
        started: float = 0.0,
        silent: bool = False,
        sent_each: float = SENT_EACH,
        **identity: Any,
    ) -> None:
        self.moved, self.started = moved, started
        self.silent = silent
        self._daemon = daemon
        self._sent_each = sent_each
        self._sent_at = daemon.after
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_module, "read_clocks", self._read_clocks)
            self.session = Session(replace(identify(run, run, environ={}), **identity), spool=spool)
        self._first_hello = self.greet()

    def clock(self) -> Clock:
        """Return its clocks."""
        now = clock(self._daemon.after)
        return Clock(now.wall + round(self.moved * 1e9), now.monotonic + round(self.started * 1e9))

    def greet(self, daemon: InProcessDaemon | None = None) -> list[bytes]:
        """Send a hello, as on a new connection, to another daemon if there is one; return it."""
        self._daemon = daemon or self._daemon
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_module, "read_clocks", self._read_clocks)
            hello = self.session.hello(self.clock())
        if not self.silent:
            self._daemon.receive(hello)
        return hello

    def deliver_late(self, daemon: InProcessDaemon) -> None:
        """Let a daemon read the messages of the ended process, as from its spool."""
        head, envelope, body = self._first_hello
        hello = replace(decode_body("hello", body), late=True)
        daemon.receive([head, envelope, encode(open_envelope(self._first_hello), hello)[2]])
        self.silent, self._daemon = False, daemon
        self._deliver()

    def _read_clocks(self) -> Clocks:
        return Clocks(self.clock().wall, self.clock().monotonic, 0)

    def push(self, step: int, **values: float) -> None:
        """Push values at a step."""
        self.session.rows.append((self.clock().monotonic, step, values))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark what happens meanwhile as a phase."""
        self.session.rows.append((self.clock().monotonic, PhaseMark(enters=True, phase=name), None))
        yield
        self.session.rows.append((self.clock().monotonic, PhaseMark(enters=False, phase=name), None))

    def wait(self, seconds: float) -> None:
        """Let the time pass, and send what is due."""
        until = self._daemon.after + seconds
        while self._sent_at + self._sent_each <= until:
            self._sent_at += self._sent_each
            self._daemon.after = self._sent_at
            self.send()
        self._daemon.after = until

    def send(self, *, everything: bool = False) -> None:
        """Send what was pushed and is due, or *everything*, which the daemon acknowledges."""
        self.session.drain(self.clock(), everything=everything)
        self._deliver()

    def finish(self) -> None:
        """End the run."""
        self.session.end(self.clock(), "finished", "", provisional=False)
        self._deliver()

    def _deliver(self) -> None:
        while not self.silent and (message := self.session.next_to_send()) is not None:
            if "hello?" in self._daemon.receive(message.frames, message.values):
                self.greet()
            else:
                self.session.acknowledged(open_envelope(message.frames).number)
