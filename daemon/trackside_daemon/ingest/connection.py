"""A client's connection: its name, and who is at its other end."""

from __future__ import annotations

from typing import NamedTuple


class Connection(NamedTuple):
    """A connection of the push socket.

    Attributes:
        id: ZeroMQ's routing id.
        uid: The user that connected to a Unix socket (SO_PEERCRED); None for TCP.
        key: The name of the key that CURVE has authenticated; empty without one.
    """

    id: bytes
    uid: int | None = None
    key: str = ""

    @property
    def owner(self) -> str:
        """Owner of the runs that it opens: ``uid:NUMBER`` or ``key:NAME``; empty if that is unknown (TCP without keys)."""
        if self.uid is not None:
            return f"uid:{self.uid}"
        return f"key:{self.key}" if self.key else ""
