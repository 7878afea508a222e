"""Busy time of a GPU, from the driver's utilization samples, which cover all the time between two cycles."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from trackside_daemon.nvml.readers.fields import UNION_MEMBERS, unknown_type
from trackside_daemon.nvml.readers.unsupported import Unsupported
from trackside_daemon.nvml.reading import Value

Sample = TypeVar("Sample")

MAX_EMPTY_CYCLES = 10  # cycles without a new sample, after which the clock of the timestamps may have been set back


class SampleCursor:
    """Position in the samples of one kind, of one GPU.

    Attributes:
        last: Timestamp of the newest sample, in microseconds; 0 before the first.
    """

    def __init__(self) -> None:
        self.last = 0
        self._empty_cycles = 0

    def new_samples(self, nvml: Any, read_since: Callable[[int], list[tuple[int, Sample]]]) -> list[tuple[int, Sample]]:
        """Return the new samples with their timestamps, oldest first.

        The first call returns none: its answer has all that the ring buffer holds.

        Args:
            nvml: The library.
            read_since: Reads the samples with their timestamps, given the last timestamp.

        Raises:
            NVMLError: The call failed.
        """
        since = self.last
        try:
            samples = read_since(since)
        except nvml.NVMLError as error:
            # NVML has three results for an empty answer.
            if error.value not in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_NO_DATA):
                raise
            samples = []
        # pynvml calls twice, and the array of the second call may have more places than samples.
        new = sorted((sample for sample in samples if sample[0] > since), key=lambda sample: sample[0])
        self._empty_cycles = 0 if new else self._empty_cycles + 1
        if new:
            self.last = new[-1][0]
        elif self._empty_cycles > MAX_EMPTY_CYCLES:
            self.last = self._empty_cycles = 0
        return new if since else []


# Microseconds. The driver samples at least once a second, so a longer gap means that samples were overwritten.
MAX_GAP = 2_000_000


OVERWRITTEN = "the driver overwrote samples before they were read; a shorter --sample.interval reads them in time"


class BusyTime:
    """Busy seconds of one GPU, counted from 0."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._cursor = SampleCursor()
        self._generation = 0
        self._has_gap = False

    def __call__(self, nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
        """Sum up ``nvmlDeviceGetSamples``: percent of the time since the sample before, stamped in microseconds.

        The driver keeps about 100 samples, which is 17 s at its fastest rate.
        """
        if self._generation != unsupported.generation:
            self._generation = unsupported.generation
            self._cursor = SampleCursor()
        last = self._cursor.last
        seconds = 0.0
        samples = self._cursor.new_samples(nvml, partial(_read_percentages, nvml, handle))
        for timestamp, percent in samples:
            # If samples were overwritten, the sum would be too low: there is none until a cycle has missed nothing.
            if timestamp - last > MAX_GAP:
                unsupported.add("busy", OVERWRITTEN)
                self._cursor = SampleCursor()
                self._has_gap = True
                return []
            if 0 <= percent <= 100:
                seconds += (timestamp - last) / 1e6 * percent / 100
            last = timestamp
        self._has_gap = self._has_gap and not samples
        self._seconds += seconds
        return [] if self._has_gap else [("busy_seconds_total", (), self._seconds)]


def _read_percentages(nvml: Any, handle: Any, since: int) -> list[tuple[int, float]]:
    kind, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, since)
    member = UNION_MEMBERS.get(kind)
    if member is None:
        raise ValueError(unknown_type(kind))
    return [(sample.timeStamp, float(getattr(sample.sampleValue, member))) for sample in samples]
