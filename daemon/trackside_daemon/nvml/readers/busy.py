"""How long a GPU has been busy: the driver's own samples of its use, which miss nothing between two cycles."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.readers.fields import MEMBERS, newer
from trackside_daemon.nvml.readers.sample_cursor import Seen

if TYPE_CHECKING:
    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

LONGEST_GAP = 2_000_000
"""Microseconds. The driver samples once a second or more often; between samples farther apart some were overwritten, and
what the GPU did then is not known."""


LOST = "the driver overwrote samples before they were read; a shorter --sample.interval reads them in time"


class Busy:
    """Of one GPU, from 0 on."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._seen = Seen()
        self._era = 0
        self._has_lost = False

    def __call__(self, nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
        """``nvmlDeviceGetSamples``: percent of the time since the sample before, stamped in microseconds.

        The driver keeps about 100 samples, of 17 s where it is quick. Where some were overwritten before they were read,
        a sum would be too low, so that there is none until a cycle has missed nothing.
        """
        if self._era != refusals.cleared:
            self._era, self._seen = refusals.cleared, Seen()
        last = self._seen.last
        seconds = 0.0
        samples = self._seen.new(nvml, partial(_percents, nvml, handle))
        for stamp, percent in samples:
            if stamp - last > LONGEST_GAP:
                refusals.add("busy", LOST)
                self._seen, self._has_lost = Seen(), True
                return []
            if 0 <= percent <= 100:
                seconds += (stamp - last) / 1e6 * percent / 100
            last = stamp
        self._has_lost = self._has_lost and not samples
        self._seconds += seconds
        return [] if self._has_lost else [("busy_seconds_total", (), self._seconds)]


def _percents(nvml: Any, handle: Any, since: int) -> list[tuple[int, float]]:
    kind, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, since)
    member = MEMBERS.get(kind)
    if member is None:
        raise ValueError(newer(kind))
    return [(sample.timeStamp, float(getattr(sample.sampleValue, member))) for sample in samples]
