"""How long a GPU has been busy: the driver's own samples of its use, which miss nothing between two cycles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.readers.fields import MEMBERS, newer
from trackside_daemon.nvml.readers.seen import Seen

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import Value
    from trackside_daemon.nvml.refusals import Refusals

LONGEST_GAP = 2_000_000
"""Microseconds. The driver samples once a second or more often; between samples farther apart some were overwritten, and
what the GPU did then is not known."""


class Busy:
    """Of one GPU, from 0 on."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._seen = Seen()

    def __call__(self, nvml: Any, handle: Any, _: Refusals) -> list[Value]:
        """``nvmlDeviceGetSamples``: percent of the time since the sample before, stamped in microseconds."""

        def ask(since: int) -> list[tuple[int, float]]:
            kind, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, since)
            member = MEMBERS.get(kind)
            if member is None:
                raise ValueError(newer(kind))
            return [(sample.timeStamp, float(getattr(sample.sampleValue, member))) for sample in samples]

        last = self._seen.last
        for stamp, percent in self._seen.new(nvml, ask):
            if stamp - last <= LONGEST_GAP and 0 <= percent <= 100:
                self._seconds += (stamp - last) / 1e6 * percent / 100
            last = stamp
        return [("busy_seconds_total", (), self._seconds)]
