"""A dictionary that forgets: what comes from outside may have keys without end."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """The entries that were set last, *most* of them; the others are forgotten."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)  # so that it moves to the end
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]
