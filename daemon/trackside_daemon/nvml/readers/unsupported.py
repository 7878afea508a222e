"""Calls that a GPU may not support: the reasons, when to try again, and readers that lose nothing else by it."""

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from trackside_daemon.nvml.reading import NO_PERMISSION, Value

SeriesCall = tuple[str, tuple[str, ...], Callable[[], float]]


# Seconds after which an unsupported call is tried again: a mode or a permission may have changed.
PROBE_SECONDS = 600.0

# Texts of the results that another call would give again. All others may pass, so the next cycle calls again.
WHY = {
    "not_supported": "this GPU or its mode does not support it",
    "function_not_found": "the driver is older than the function",
    "argument_version_mismatch": "the driver is older than this version of the call",
    "deprecated": "the driver no longer supports it",
    "invalid_argument": "this GPU does not support this call",
    "no_permission": f"{NO_PERMISSION}; run the daemon as root or with CAP_SYS_ADMIN",
}


def lasts(result: str) -> bool:
    """Return whether another call would give the *result* again: a key of `WHY`, or one of our sentences."""
    return " " in result or result in WHY


class Unsupported:
    """Readers and series that one GPU does not support, by name.

    Args:
        clock: Monotonic clock in seconds.

    Attributes:
        generation: Number of calls of `clear`. Values that a reader cached before the last one may be of another GPU.
        sources: Source of each series that could come from several, until `clear`. Two sources count differently, so a
            counter that changed between them would jump.
        summed_links: Links whose counters a series adds up, for the same reason.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.generation = 0
        self.sources: dict[str, str] = {}
        self.summed_links: dict[str, tuple[int, ...]] = {}
        self._clock = clock
        self._why: dict[str, str] = {}
        self._until: dict[str, float] = {}

    def add(self, name: str, result: str) -> None:
        """Record a reader or series with a *result* of `CountedNvml.result` that lasts, or with a sentence of ours."""
        if lasts(result):
            self._why[name] = WHY.get(result, result)
            self._until[name] = self._clock() + PROBE_SECONDS

    def __contains__(self, name: str) -> bool:
        """Return whether to skip the call now."""
        if name in self._until and self._until[name] < self._clock():
            del self._until[name], self._why[name]
        return name in self._until

    def remove(self, name: str) -> None:
        """Forget a reader or series, which is supported again."""
        self._why.pop(name, None)
        self._until.pop(name, None)

    def reasons(self) -> dict[str, str]:
        """Return the reasons, by name."""
        # A copy, because the check removes entries that are due for another try.
        return {name: why for name, why in list(self._why.items()) if name in self}

    def clear(self) -> None:
        """Forget everything: the GPU was lost, or its mode has changed."""
        self.generation += 1
        self.sources.clear()
        self.summed_links.clear()
        self._why.clear()
        self._until.clear()


Result = TypeVar("Result")

# A driver that does not know the number may return 0xFFFFFFFF, and each item costs a call.
MAX_COUNT = 64  # more links, fans or MIG devices than any GPU has


def series(family: str, labels: Iterable[str] = ()) -> str:
    """Return the name of a series among the unsupported ones: ``clock_hertz{video}``."""
    return f"{family}{{{','.join(labels)}}}" if labels else family


def call_if_supported(nvml: Any, unsupported: Unsupported, name: str, call: Callable[[], Result]) -> Result | None:
    """Return the result of the call; None if it is not supported, and then record *name*.

    Raises:
        NVMLError_GpuIsLost: The GPU fell off the bus.
    """
    if name in unsupported:
        return None
    try:
        return call()
    except nvml.NVMLError_GpuIsLost:
        raise
    except nvml.NVMLError as error:
        unsupported.add(name, nvml.result(error.value))
        return None


def read_supported(nvml: Any, unsupported: Unsupported, calls: Iterable[SeriesCall]) -> list[Value]:
    """Return the values of the supported calls."""
    results = (
        (family, labels, call_if_supported(nvml, unsupported, series(family, labels), call))
        for family, labels, call in calls
    )
    return [(family, labels, result) for family, labels, result in results if result is not None]
