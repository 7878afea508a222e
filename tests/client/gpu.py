"""A GPU simulated on the CPU: a test sets the time of its events and the use of its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client.stream import Event, Stream

from trackside.pytorch.cuda_timer import CudaDevices

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class Gpu(Stream, CudaDevices):
    """One GPU that holds every tensor.

    Attributes:
        begun: True if it is used.
        failed: True if its events raise an error.
        now: Its time in seconds, at which its next work begins.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.failed = True, False
        self.now = 0.0
        self._at: dict[int, float] = {}
        self._memory: dict[str, Any] = {}

    def used(self) -> bool:
        return self.begun

    def has(self, device: torch.device) -> bool:
        return bool(device.type == "cpu")

    def mark(self, event: Event | None, device: torch.device) -> Event:
        if self.failed:
            raise RuntimeError("the device has failed")
        event = self.record(event, device)
        self._at[id(event)] = self.now
        return event

    def seconds(self, first: Event, last: Event) -> float:
        return self._at[id(last)] - self._at[id(first)]

    def count(self) -> int:
        return 1

    def uuid(self, device: int | torch.device) -> str:
        assert self.uuids is not None
        return self.uuids.get("cpu", "") if device == 0 else super().uuid(device)

    def memory(self, index: int) -> Mapping[str, Any]:
        assert index == 0
        return self._memory

    def fill(self, *, allocated: int, peak: int, ooms: int = 0) -> None:
        """Let so many bytes be in use; ten times as many are reserved."""
        self._memory = {
            "allocated_bytes": {"all": {"current": allocated, "peak": peak}},
            "reserved_bytes": {"all": {"current": 10 * allocated, "peak": 10 * peak}},
            "num_ooms": ooms,
        }
