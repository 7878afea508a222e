"""What processes are called: a label that each chooses for itself, so that only its first choice counts."""

from __future__ import annotations

from typing import NamedTuple


class Life(NamedTuple):
    """One process among those that have had its pid."""

    pid: int
    started: int


class Names:
    """Keeps each process's first name, until the process is not asked about for a round.

    One that renames itself again and again would be a new series each time.
    """

    def __init__(self) -> None:
        self._before: dict[Life, str] = {}
        self._now: dict[Life, str] = {}

    def begin(self) -> None:
        """A round begins: whoever was not asked about in the last one is forgotten."""
        self._before, self._now = self._now, {}

    def first(self, life: Life, name: str) -> str:
        """The name that the process had first, given the one that it has now."""
        return self._now.setdefault(life, self._before.get(life, name))
