"""What is found out beside the user's own numbers, until his next push takes it along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Beside:
    """Numbers that join the next push, and what is to be said after it.

    Attributes:
        own: Keys of these that the user has pushed himself. His word counts: they are left out from then on.
    """

    __slots__ = ("_after", "_known", "_waiting", "own")

    def __init__(self) -> None:
        self.own: set[str] = set()
        self._known: set[str] = set()
        self._waiting: dict[str, Any] = {}
        self._after: list[Callable[[], object]] = []

    def add(self, values: Mapping[str, Any]) -> None:
        """Have these join; of a key that waits already the newest value does."""
        self._known.update(values)
        self._waiting = {**self._waiting, **values}

    def after(self, say: Callable[[], object]) -> None:
        """Have something said behind the next push, so that it stands at that push's step."""
        self._after.append(say)

    def join(self, named: dict[str, Any]) -> dict[str, Any]:
        """The user's numbers, and what waits beside them."""
        if not self._known.isdisjoint(named):
            self.own |= self._known & named.keys()
        waiting, self._waiting = self._waiting, {}
        return {**{key: value for key, value in waiting.items() if key not in self.own}, **named}

    def say(self) -> None:
        """Say what was to be said behind the push."""
        after, self._after = self._after, []
        for say in after:
            say()
