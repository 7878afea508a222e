"""Reading the fake driver through the real worker, without waiting for deadlines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from processes import eventually

from trackside_daemon.nvml.handle.handle import Nvml, NvmlUnavailable

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import GpuReading, Reading, WorkerSettings

LONG = 30.0
"""Patience for what comes at once, on a machine that is busy with other tests."""


class Watch:
    """A handle whose clock can be moved on where a deadline or a back-off would be waited for."""

    def __init__(self, order: WorkerSettings | None = None) -> None:
        self.ahead = 0.0
        self.nvml = Nvml(order, clock=lambda: time.monotonic() + self.ahead)

    @property
    def pid(self) -> int:
        """The worker."""
        assert self.nvml._child is not None
        return self.nvml._child.pid

    def read(self) -> Reading:
        """The next reading; back-off and a worker's end are not waited for."""

        def look() -> Reading | None:
            try:
                return self.nvml.read(LONG)
            except NvmlUnavailable:
                self.ahead += 1.0
                return None

        found = eventually(look)
        assert found is not None
        return found

    def refusal(self, patience: float = LONG) -> str:
        """Why there is no reading."""
        with pytest.raises(NvmlUnavailable) as caught:
            self.nvml.read(patience)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def until_it_stands_at(self, gpu: int) -> None:
        """Asks until the worker hangs there."""

        def stands_there() -> bool:
            self.refusal(0.05)
            return self.nvml._client is not None and self.nvml._client.current_gpu == gpu

        eventually(stands_there)


def values(gpu: GpuReading) -> dict[str, float]:
    """What a GPU measures, as ``family`` or ``family:label``."""
    return {":".join((name, *labels)): value for name, labels, value in gpu.values}
