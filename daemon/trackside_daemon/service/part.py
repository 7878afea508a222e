"""The list of what a daemon starts and stops."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Part(NamedTuple):
    """A start and a stop of the daemon, of the same thing where both are given.

    Attributes:
        start: Starts it; None if it is open from the beginning.
        stop: Stops it; None if there is nothing to stop.
    """

    start: Callable[[], object] | None = None
    stop: Callable[[], object] | None = None


class PartList:
    """Parts in the order in which they start; they stop in the reverse order.

    Args:
        parts: The parts.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = tuple(parts)
        self._started = 0

    def start(self) -> None:
        """Start all parts; after the first that fails, no other starts."""
        for part in self._parts:
            if part.start is not None:
                part.start()
            self._started += 1

    def stop(self) -> None:
        """Stop the parts that have started or were open from the beginning, all of them even if one fails."""
        with ExitStack() as stops:
            for number, part in enumerate(self._parts):
                if part.stop is not None and (part.start is None or number < self._started):
                    stops.callback(part.stop)
