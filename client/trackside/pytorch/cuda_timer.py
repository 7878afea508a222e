"""Measure how long a GPU works on a stage, by a CUDA event at its begin and one at its end. The host never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from trackside.device_scalars import Cuda

EVENTS = 1024  # limit of CUDA events: a stage for which none is left is not timed


class CudaDevices(Cuda):
    """Access to PyTorch's CUDA, or ROCm, for timing and for memory."""

    def used(self) -> bool:
        """Return whether this process has begun to use a GPU."""
        return bool(self._torch.cuda.is_initialized())

    def has(self, device: Any) -> bool:
        """Return whether *device* is a GPU."""
        return bool(device.type == "cuda")

    def mark(self, event: Any, device: Any) -> Any:
        """Record an event that has a time, as `record`."""
        event = self._torch.cuda.Event(enable_timing=True) if event is None else event
        return self.record(event, device)

    def seconds(self, first: Any, last: Any) -> float:
        """Return the seconds between two events that are done."""
        return float(first.elapsed_time(last)) / 1000

    def count(self) -> int:
        """Return the number of GPUs that this process sees."""
        return int(self._torch.cuda.device_count())

    def memory(self, index: int) -> Mapping[str, Any]:
        """Return the allocator's figures of one GPU (`torch.cuda.memory_stats`, nested); neither waits nor allocates."""
        stats: Mapping[str, Any] = self._torch.cuda.memory_stats_as_nested_dict(index)
        return stats


class _Span(NamedTuple):
    stage: str
    first: Any
    last: Any
    weight: int


class CudaTimer:
    """Stages that GPUs work on, in order. Events are created once and reused; only `collect` queries them.

    Args:
        gpus: Access to CUDA.
        most: See `EVENTS`.

    Attributes:
        pending: Stages that are not done, oldest first.
        weight: Factor of a stage that ends now: it also stands for steps that were not timed.
    """

    def __init__(self, gpus: CudaDevices, most: int = EVENTS) -> None:
        self._most = most
        self.pending: deque[_Span] = deque()
        self.weight = 1
        self._gpus = gpus
        self._free: list[Any] = []
        self._created = 0

    @property
    def is_full(self) -> bool:
        """No event is left for another stage."""
        return not self._free and self._created >= self._most

    def begin(self, device: Any) -> Any:
        """Return the event that marks this point of the device's current stream; None if none is left or allowed."""
        if self._gpus.forbids() or self.is_full:
            return None
        return self._gpus.mark(self._next_event(), device)

    def end(self, stage: str, first: Any, device: Any) -> None:
        """End a stage at this point, which began at the event *first*."""
        if self._gpus.forbids():  # an event that is recorded into a graph has no time
            self.drop(first)
            return
        self.pending.append(_Span(stage, first, self._gpus.mark(self._next_event(), device), self.weight))

    def drop(self, first: Any) -> None:
        """Return the event of a begin to the free ones, if there is one."""
        if first is not None:
            self._free.append(first)

    def collect(self) -> dict[str, float]:
        """Return seconds by stage that are done since the last call; only the training's thread may call this."""
        done: dict[str, float] = {}
        # `first` too: the stream may have changed between the two, and then they are not in order.
        while self.pending and self.pending[0].last.query() and self.pending[0].first.query():
            span = self.pending.popleft()
            seconds = self._gpus.seconds(span.first, span.last) * span.weight
            done[span.stage] = done.get(span.stage, 0.0) + seconds
            self._free += (span.first, span.last)
        return done

    def _next_event(self) -> Any:
        """Return a free event; None for a new one."""
        if self._free:
            return self._free.pop()
        self._created += 1
        return None
