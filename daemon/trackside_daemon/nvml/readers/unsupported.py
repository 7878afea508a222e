"""What a GPU does not answer, why, and until when it is not asked again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trackside_daemon.nvml.reading import PERMISSION

if TYPE_CHECKING:
    from collections.abc import Callable

PROBE_SECONDS = 600.0
"""After so long the GPU is asked again: a mode may have been changed, a permission given."""

WHY = {
    "not_supported": "this GPU or its mode does not support it",
    "function_not_found": "the driver is older than the function",
    "argument_version_mismatch": "the driver is older than the question",
    "deprecated": "the driver no longer answers it",
    "invalid_argument": "this GPU does not know the question",
    "no_permission": f"{PERMISSION}; run the daemon as root or with CAP_SYS_ADMIN",
}
"""The results that another call would give again. All others may pass, and are asked again in the next cycle."""


def lasts(result: str) -> bool:
    """Whether another call would give the *result* again: a word of `WHY`, or a reason of ours, in words."""
    return " " in result or result in WHY


class Refusals:
    """Of one GPU.

    Args:
        clock: Seconds of a clock that only goes forward.

    Attributes:
        cleared: How often all was forgotten. What a reader kept from before the last time is of another GPU.
        chosen: Where a series comes from that could come from several places, by its name, until all is forgotten: what
            two places count differs, so that a counter that changed between them would jump.
        links: Of which links a series is the sum, by its name, for the same reason.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.cleared = 0
        self.chosen: dict[str, str] = {}
        self.links: dict[str, tuple[int, ...]] = {}
        self._clock = clock
        self._why: dict[str, str] = {}
        self._until: dict[str, float] = {}

    def add(self, name: str, result: str) -> None:
        """A reader, or a family, was refused with a *result* of `Library.result`; or for a reason of ours, in words."""
        if lasts(result):
            self._why[name] = WHY.get(result, result)
            self._until[name] = self._clock() + PROBE_SECONDS

    def __contains__(self, name: str) -> bool:
        """Whether it is not to be asked now."""
        if name in self._until and self._until[name] < self._clock():
            del self._until[name], self._why[name]
        return name in self._until

    def lift(self, name: str) -> None:
        """It is refused no longer."""
        self._why.pop(name, None)
        self._until.pop(name, None)

    def told(self) -> dict[str, str]:
        """Why, by name."""
        return {name: why for name, why in list(self._why.items()) if name in self}

    def clear(self) -> None:
        """Ask for everything again: the GPU was lost, or its mode has changed."""
        self.cleared += 1
        self.chosen.clear()
        self.links.clear()
        self._why.clear()
        self._until.clear()
