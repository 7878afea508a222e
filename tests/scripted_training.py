"""A training with the real client session, whose messages reach a daemon in simulated time."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from wire_messages import clock

from trackside.environment.identity import identify
from trackside.totals.phases import Mark
from trackside.transport import session as session_module
from trackside.transport.session import Session
from trackside.wire import Clock, open_envelope

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
        identity: Fields of its identity.

    Attributes:
        moved: Seconds by which its wall clock is ahead of the one that it began with.
        session: The session.
    """

    def __init__(self, daemon: InProcessDaemon, spool: Path, run: str = "train", **identity: Any) -> None:
        self.moved = 0.0
        self._daemon = daemon
        self._sent_at = daemon.after
        with pytest.MonkeyPatch.context() as patch:
            now = SimpleNamespace(time_ns=lambda: self.clock().wall, monotonic_ns=lambda: self.clock().monotonic)
            patch.setattr(session_module, "time", now)
            self.session = Session(replace(identify(run, run, environ={}), **identity), spool=spool)
        self.greet()

    def clock(self) -> Clock:
        """Return its clocks."""
        now = clock(self._daemon.after)
        return Clock(now.wall + round(self.moved * 1e9), now.monotonic)

    def greet(self) -> None:
        """Send a hello, as on a new connection."""
        self._daemon.receive(self.session.hello(self.clock()))

    def push(self, step: int, **values: float) -> None:
        """Push values at a step."""
        self.session.rows.append((self.clock().monotonic, step, values))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark what happens meanwhile as a phase."""
        self.session.rows.append((self.clock().monotonic, Mark(enters=True, phase=name), None))
        yield
        self.session.rows.append((self.clock().monotonic, Mark(enters=False, phase=name), None))

    def wait(self, seconds: float) -> None:
        """Let the time pass, and send what is due."""
        until = self._daemon.after + seconds
        while self._sent_at + SENT_EACH <= until:
            self._sent_at += SENT_EACH
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
        while (message := self.session.next_to_send()) is not None:
            self._daemon.receive(message.frames, message.values)
            self.session.acknowledged(open_envelope(message.frames).number)
