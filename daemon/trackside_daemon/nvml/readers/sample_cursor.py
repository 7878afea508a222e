"""Cursor over samples that the driver stamps and keeps in a ring buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

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
