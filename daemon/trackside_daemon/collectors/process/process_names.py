"""Keep the first name of each process: a process can rename itself again and again, and each name would be a new series."""

from __future__ import annotations

from typing import NamedTuple


class ProcessKey(NamedTuple):
    """A pid and a start time in clock ticks since boot, which together identify a process."""

    pid: int
    started: int


class FirstNames:
    """First names of processes, each kept until a tick in which nothing asks for it."""

    def __init__(self) -> None:
        self._before: dict[ProcessKey, str] = {}
        self._now: dict[ProcessKey, str] = {}

    def begin(self) -> None:
        """Begin a tick, and forget processes that the last tick did not ask for."""
        self._before = self._now
        self._now = {}

    def first(self, key: ProcessKey, name: str) -> str:
        """Return the first name of a process, given its current *name*."""
        return self._now.setdefault(key, self._before.get(key, name))
