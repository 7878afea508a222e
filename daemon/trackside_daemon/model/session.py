"""Typed references to client sessions, to the processes behind them, and to ranks and runs.

Ingest resolves a session once, and later stages read these references. Only the history's tables have session ids as keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.model.log_fields import log_fields

if TYPE_CHECKING:
    from trackside.wire import Hello, Identity


class Process(NamedTuple):
    """The name of a process on all machines: its pid and start time, and the boot id of its machine."""

    pid: int
    start: int
    boot: str


NO_PROCESS = Process(0, 0, "")


def process_of(identity: Identity) -> Process:
    """Return the process that an identity describes."""
    return Process(identity.pid, identity.start, identity.boot)


def correlation_of(hello: Hello) -> str:
    """Return the id by which other systems refer to the job of a session; empty for none."""
    return "" if hello.about is None else hello.about.correlation


class SessionRef(NamedTuple):
    """A client session as ingest has resolved it."""

    id: bytes  # the 16 bytes that name the session on the wire
    run: str = ""  # the id of its run
    name: str = ""  # the run's name, as it is exported
    attempt: int = 0  # the attempt of the run, as this daemon counts
    rank: int = 0  # the global rank
    process: Process = NO_PROCESS  # the client's process
    late: bool = False  # the sender speaks for a process that is gone: its messages go to the history only
    correlation: str = ""  # id by which other systems refer to its job; empty for none

    @property
    def log_fields(self) -> dict[str, Any]:
        """Fields of a log line about it."""
        return log_fields(self.run, self.name, self.rank, correlation_id=self.correlation)


class Owner(NamedTuple):
    """The user or the key that opened a session, and so owns its run."""

    id: str = ""  # ``uid:NUMBER`` or ``key:NAME``; empty if that is unknown
    user: str = ""  # the name that people see
    # The connection itself has identified the process, so that the client cannot have invented it.
    verified: bool = False


class RankRef(NamedTuple):
    """An attempt of a run, or one rank of it; *rank* is None for the attempt as a whole."""

    run: str
    attempt: int
    rank: int | None = None
