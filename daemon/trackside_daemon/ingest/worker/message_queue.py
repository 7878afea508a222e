"""The queue in front of the channel: the owners of connections take turns, so that none of them waits for the flood of another."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.model.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.ingest.channel import Channel, Kind, Piece

WAITING_BYTES = 32 << 20  # of all owners, who have equal shares
FLUSH_BYTES = 1 << 16  # that one call of the kernel sends, so that small messages share it
ROUND_BYTES = 4 << 20  # after so many all owners are equal again
RECORD_BYTES = 1 << 10  # what a record needs besides its parts
DESCRIPTOR_BYTES = 1 << 16  # as which a descriptor counts, of which this process may have a thousand


class _Waiting(NamedTuple):
    """A record of the channel."""

    kind: Kind
    parts: Sequence[Piece]
    descriptor: int
    size: int


class MessageQueue:
    """The records of the connections. Those of one owner keep their order.

    Args:
        channel: Where they go. It has no turns, so that it gets no more than the daemon reads soon.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._turns: Turns[_Waiting] = Turns()
        self._sizes: Counter[str] = Counter()

    def has_room(self, owner: str, parts: Sequence[Piece]) -> bool:
        """Return whether a message fits into its owner's share."""
        share = WAITING_BYTES / len({*self._turns.waiting, owner})
        return owner not in self._turns.waiting or self._sizes[owner] + sum(map(len, parts)) <= share

    def add(self, owner: str, kind: Kind, parts: Sequence[Piece], descriptor: int = -1) -> None:
        """Queue a record, with a descriptor to pass on, which is closed after that."""
        size = RECORD_BYTES + sum(map(len, parts)) + (DESCRIPTOR_BYTES if descriptor >= 0 else 0)
        self._turns.add(owner, _Waiting(kind, parts, descriptor, size))
        self._sizes[owner] += size

    def flush(self) -> None:
        """Send as much as the channel accepts.

        Raises:
            ChannelClosed: Its other end is closed.
        """
        self._channel.flush()
        while self._turns.waiting and not self._channel.unsent:
            while self._turns.waiting and self._channel.unsent < FLUSH_BYTES:
                owner = self._turns.next()
                kind, parts, descriptor, size = self._turns.get(owner)
                self._sizes[owner] -= size
                self._channel.add(kind, parts, descriptor)
            if self._turns.taken.total() >= ROUND_BYTES:
                self._turns.taken.clear()
            self._sizes += Counter()  # without those that are 0
            self._channel.flush()
