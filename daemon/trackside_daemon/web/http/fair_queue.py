"""A bounded queue that gives each address, and each user name of an address, its turn."""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class FullError(Exception):
    """The item has no place in the queue."""


class Source(NamedTuple):
    """The origin of an item: the client's address, and the user name of its request."""

    address: str
    user: str


class FairQueue(Generic[Item]):
    """A queue in which many items of one source delay the others by one turn each, and never keep them out.

    Args:
        each: How many items of a source may wait.
        total: How many items may wait.
    """

    def __init__(self, each: int, total: int) -> None:
        self._each = each
        self._total = total
        self._size = 0
        # By address and by user. Whoever is first has the next turn, and goes to the end after it.
        self._waiting: dict[str, dict[str, deque[Item]]] = {}

    def put(self, source: Source, item: Item) -> Item | None:
        """Add an item; return the one that lost its place to it, if any.

        Raises:
            FullError: There is no place: too many items of its source wait, or of its address and none has fewer.
        """
        own = self._waiting.get(source.address, {}).get(source.user, ())
        if len(own) >= self._each:
            raise FullError
        displaced = self._displace(source) if self._size >= self._total else None
        self._waiting.setdefault(source.address, {}).setdefault(source.user, deque()).append(item)
        self._size += 1
        return displaced

    def get(self) -> Item | None:
        """Remove and return the next item; None if the queue is empty."""
        if not self._waiting:
            return None
        address, users = next(iter(self._waiting.items()))
        user = next(iter(users))
        items = users.pop(user)
        item = items.popleft()
        if items:
            users[user] = items
        del self._waiting[address]
        if users:
            self._waiting[address] = users
        self._size -= 1
        return item

    def _displace(self, source: Source) -> Item:
        """Remove and return the newest item of the user with most items, of the address with most items."""
        address = max(self._waiting, key=lambda name: sum(map(len, self._waiting[name].values())))
        users = self._waiting[address]
        user = max(users, key=lambda name: len(users[name]))
        if address == source.address and len(users[user]) <= len(users.get(source.user, ())) + 1:
            raise FullError
        item = users[user].pop()
        if not users[user]:
            del users[user]
        if not users:
            del self._waiting[address]
        self._size -= 1
        return item
