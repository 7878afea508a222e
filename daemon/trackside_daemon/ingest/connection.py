"""A client's connection: its name, and who is at its other end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trackside_daemon.ingest.peer import Peer


class Connection(NamedTuple):
    """A connection of the push socket.

    Attributes:
        id: ZeroMQ's routing id, after the number of the worker that has it.
        uid: The user that connected to a Unix socket (SO_PEERCRED); None for TCP.
        key: The name of the key that CURVE has authenticated; empty without one.
        peer: The process that connected; None for TCP.
    """

    id: bytes
    uid: int | None = None
    key: str = ""
    peer: Peer | None = None

    @property
    def owner(self) -> str:
        """Owner of the runs that it opens: ``uid:NUMBER`` or ``key:NAME``; empty if that is unknown (TCP without keys)."""
        if self.uid is not None:
            return f"uid:{self.uid}"
        return f"key:{self.key}" if self.key else ""
