"""Rank the causes of a slow-down, and conclude with the likeliest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.evidence.causes import gpu_causes, host_causes
from trackside_daemon.model.families import gpu, host, process, training
from trackside_daemon.model.text import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.alerts.evidence.causes.cause import SlowDownCause
    from trackside_daemon.alerts.evidence.causes.readings import Readings

MOST = 8  # causes of one alert

# What is compared, by the family that must be known for it.
_COMPARED = {
    gpu.CLOCK: "GPU clocks",
    gpu.PCIE_LINK_WIDTH: "PCIe links",
    host.MEMORY_WAITING: "memory pressure",
    host.IO_WAITING: "I/O pressure",
    host.CPU_WAITING: "CPU pressure",
    process.CPU_WAIT: "the wait for CPUs",
    training.PHASE_SECONDS: "the phases of the step",
}


def ranked(readings: Readings) -> list[SlowDownCause]:
    """Return the causes that can explain enough of a slow-down, the likeliest first."""
    found = [cause for cause in (*gpu_causes.gpu_causes(readings), *host_causes.host_causes(readings)) if cause.counts]
    best: dict[str, SlowDownCause] = {}
    for cause in sorted(found, key=lambda cause: -cause.weight):
        best.setdefault(cause.cause, cause)
    return list(best.values())[:MOST]


def compared(readings: Readings) -> list[str]:
    """Return what has a usual level and one now."""
    return [text for family, text in _COMPARED.items() if readings.of(family)]


def conclusion(causes: Sequence[SlowDownCause], known: Sequence[str]) -> str:
    """Return the likeliest cause as a sentence, or that nothing has moved of what is *known*; empty if nothing is."""
    if causes:
        first, *others = causes
        explains = "" if first.share is None else f" (this can explain {percent(first.share)} of the lost time)"
        also = f" Also, {others[0].text}." if others else ""
        return f"Likely cause: {first.text}{explains}.{also}"
    if not known:
        return ""
    return f"No cause was found; these have not moved more than usual: {', '.join(known)}."
