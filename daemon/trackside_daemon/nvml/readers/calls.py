"""Calls of one reader, each of which may be unsupported without cost to the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trackside_daemon.nvml.readers.unsupported import Unsupported
    from trackside_daemon.nvml.reading import Value

    SeriesCall = tuple[str, tuple[str, ...], Callable[[], float]]

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
