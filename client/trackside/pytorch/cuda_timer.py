"""How long a GPU works on a stage: a CUDA event at its begin and one at its end, asked later. The host never waits."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.pytorch.device_scalars import Cuda

if TYPE_CHECKING:
    from collections.abc import Mapping

EVENTS = 1024
"""So many are under way at most: a stage for which there is none is not timed."""


class CudaDevices(Cuda):
    """What watching asks of PyTorch's CUDA besides, or of ROCm."""

    def used(self) -> bool:
        """Whether this process has begun to use any."""
        return bool(self._torch.cuda.is_initialized())

    def has(self, device: Any) -> bool:
        """Whether a device is one of them."""
        return bool(device.type == "cuda")

    def mark(self, event: Any, device: Any) -> Any:
        """`record`, but the event knows the time."""
        event = self._torch.cuda.Event(enable_timing=True) if event is None else event
        return self.record(event, device)

    def seconds(self, first: Any, last: Any) -> float:
        """Between two events that are done."""
        return float(first.elapsed_time(last)) / 1000

    def count(self) -> int:
        """How many this process sees."""
        return int(self._torch.cuda.device_count())

    def memory(self, index: int) -> Mapping[str, Any]:
        """What the allocator knows of one (`torch.cuda.memory_stats`, not yet flattened); it neither waits nor allocates."""
        found: Mapping[str, Any] = self._torch.cuda.memory_stats_as_nested_dict(index)
        return found


class _Span(NamedTuple):
    stage: str
    first: Any
    last: Any
    times: int


class CudaTimer:
    """The stages that GPUs work on, in order. Events are made once and used again; only `collect` asks them.

    Args:
        gpus: Where they are.

    Attributes:
        under_way: Oldest first.
        times: A stage that ends now counts so many times: for those of the steps that were not timed.
    """

    def __init__(self, gpus: CudaDevices) -> None:
        self.under_way: deque[_Span] = deque()
        self.times = 1
        self._gpus = gpus
        self._free: list[Any] = []
        self._made = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no event for another stage."""
        return not self._free and self._made >= EVENTS

    def begin(self, device: Any) -> Any:
        """The event that marks this point of the device's current stream; None where there is no event or may be none."""
        if self._gpus.forbids() or self.is_full:
            return None
        return self._gpus.mark(self._take(), device)

    def end(self, stage: str, first: Any, device: Any) -> None:
        """Let a stage end at this point, that began at the event *first*."""
        if self._gpus.forbids():  # an event that is recorded into a graph tells no time
            self.drop(first)
            return
        self.under_way.append(_Span(stage, first, self._gpus.mark(self._take(), device), self.times))

    def drop(self, first: Any) -> None:
        """Take the event of a begin back, if there is one."""
        if first is not None:
            self._free.append(first)

    def collect(self) -> dict[str, float]:
        """Seconds by stage of those that are done and were not told yet; for the thread that trains alone."""
        done: dict[str, float] = {}
        while self.under_way and self.under_way[0].last.query() and self.under_way[0].first.query():
            span = self.under_way.popleft()
            seconds = self._gpus.seconds(span.first, span.last) * span.times
            done[span.stage] = done.get(span.stage, 0.0) + seconds
            self._free += (span.first, span.last)
        return done

    def _take(self) -> Any:
        if self._free:
            return self._free.pop()
        self._made += 1
        return None
