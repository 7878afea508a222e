"""Queues whose owners take turns, so that none of them waits for what another has queued."""

from collections import Counter, deque
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """An item with an approximate size in bytes."""

    @property
    def size(self) -> int:
        """The size."""


T = TypeVar("T", bound=Sized)


class Turns(Generic[T]):
    """The items of each owner in their order; the owner with the fewest bytes is next.

    Attributes:
        waiting: The items by owner; the one that has waited for longest for a turn is first.
        taken: Bytes by owner since the last `clear` of it.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, deque[T]] = {}
        self.taken: Counter[str] = Counter()

    def add(self, owner: str, item: T) -> None:
        """Queue an item."""
        self.waiting.setdefault(owner, deque()).append(item)

    def next(self) -> str:
        """Return whose turn it is; one at least has to wait."""
        return min(self.waiting, key=self.taken.__getitem__)

    def get(self, owner: str) -> T:
        """Return the first item of an owner."""
        items = self.waiting.pop(owner)
        item = items.popleft()
        if items:
            self.waiting[owner] = items  # at the end: of those with as many bytes, it is the last
        self.taken[owner] += item.size
        return item
