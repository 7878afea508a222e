"""Readings of the fake driver through the real worker, without waits for deadlines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, eventually
from scripted_workers import hangs_at, pid

from trackside_daemon.nvml.handle.handle import Nvml, NvmlUnavailable

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import GpuReading, Reading, WorkerSettings

LONG = DEADLINE
"""Timeout in seconds for immediate answers, on a machine that is busy with other tests."""


class Watch:
    """A handle with a clock that the test moves instead of waiting for a deadline or a back-off."""

    def __init__(self, order: WorkerSettings | None = None) -> None:
        self.ahead = 0.0
        self.nvml = Nvml(order, clock=lambda: time.monotonic() + self.ahead)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return pid(self.nvml)

    def read(self) -> Reading:
        """Return the next reading, without waiting for a back-off or a worker's end."""

        def try_read() -> Reading | None:
            try:
                return self.nvml.read(LONG)
            except NvmlUnavailable:
                self.ahead += 1.0
                return None

        found = eventually(try_read)
        assert found is not None
        return found

    def unavailable_reason(self, patience: float = LONG) -> str:
        """Return the reason why there is no reading."""
        with pytest.raises(NvmlUnavailable) as caught:
            self.nvml.read(patience)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def read_until_hang_at(self, gpu: int) -> None:
        """Read until the worker hangs at that GPU."""

        def hangs_there() -> bool:
            self.unavailable_reason(0.05)
            return hangs_at(self.nvml, gpu)

        eventually(hangs_there)


def values(gpu: GpuReading) -> dict[str, float]:
    """Return the values of a GPU, by ``family`` or ``family:label``."""
    return {":".join((name, *labels)): value for name, labels, value in gpu.values}
