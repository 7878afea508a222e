"""What is found out beside the user's own numbers, until his next push takes it along."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from trackside.pytorch.device_scalars import DeviceScalars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STEP_SKIPPED = "\0unless"
"""A key that travels no further: if its number is not zero, what came with it of gradients is none."""

SAID = 64
"""So much at most waits to be said."""


class PendingValues:
    """Numbers that join the next push, and what is to be said after it.

    Attributes:
        own: Keys of these that the user has pushed himself. His word counts: they are left out from then on.
        known: All keys of these.
        waits: There is something to join a push, or to be said behind it.
    """

    __slots__ = ("_after", "_asked", "_waiting", "known", "own", "waits")

    def __init__(self) -> None:
        self.own: set[str] = set()
        self.waits = False
        self.known: set[str] = set()
        self._waiting: dict[str, Any] = {}
        self._after: list[Callable[[], object]] = []
        self._asked: DeviceScalars | None = None

    def add(self, values: Mapping[str, Any]) -> None:
        """Have these join; of a key that waits already the newest value does."""
        self.known.update(values)
        self._waiting = {**self._waiting, **values}
        self.waits = True

    def know(self, key: str) -> None:
        """Take a key for one of these, though it may never be: of what is told by another one to the same end."""
        self.known.add(key)

    def after(self, say: Callable[[], object]) -> None:
        """Have something said behind the next push, so that it stands at that push's step."""
        if len(self._after) < SAID:
            self._after.append(say)
            self.waits = True

    def ask(self, scalars: Mapping[str, Any], then: Callable[[dict[str, float]], object]) -> None:
        """Have numbers that are still on a device handed over when they have arrived, at the end at the latest."""
        if self._asked is None:
            self._asked = DeviceScalars(lambda _, then, found: then(found), lambda _: None)
        self._asked.defer(monotonic_ns(), then, scalars)
        self.waits = True

    def poll(self) -> None:
        """Hand over what has arrived."""
        if self._asked is not None:
            self._asked.poll()

    def drain(self, seconds: float) -> float:
        """Wait so long at most for what has not arrived, and say all; how many seconds it took."""
        took = 0.0 if self._asked is None else self._asked.drain(seconds)
        self.say()
        return took

    def join(self, named: dict[str, Any]) -> dict[str, Any]:
        """The user's numbers, and behind them what waits beside them."""
        self.waits = self._asked is not None
        if not self.known.isdisjoint(named):
            self.own |= self.known & named.keys()
        waiting, self._waiting = self._waiting, {}
        return {**named, **{key: value for key, value in waiting.items() if key not in self.own}}

    def arrived(self, values: dict[str, float]) -> dict[str, float]:
        """What of the numbers that came from a device is to be kept: see `STEP_SKIPPED`."""
        if not values.pop(STEP_SKIPPED, 0.0):
            return values
        found = self.known - self.own
        return {key: value for key, value in values.items() if key not in found or not key.startswith("grad_norm")}

    def say(self) -> None:
        """Say what was to be said behind the push."""
        after, self._after = self._after, []
        for say in after:
            say()
