"""Rows that the threads of the training queue for the sender thread."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside.media.unsent import UnsentMedia
    from trackside.totals.phases import PhaseMark
    from trackside.totals.session_totals import Deferred
    from trackside.wire import Device, DistributionFrame, TensorHash, TrainingAlert, TrainingEvent

Row = (
    tuple[int, "int | Deferred | None", dict[str, float]]
    | tuple[int, "PhaseMark | Device | TrainingEvent | TrainingAlert | Measured | UnsentMedia | int", None]
)
"""Monotonic nanoseconds, the user's step or None, numbers by key. Or without numbers: monotonic nanoseconds, a message,
None. The message may be a number: the nanoseconds of a wait for data that nobody has marked."""


class Distributions(Protocol):
    """Distributions of one step, of weights and the like or of the heads of attention; or a hash of weights."""

    def tensors(self) -> list[Any]:
        """Return the tensors that have them."""

    def frame(self, kind: str, time: int, tensors: Sequence[Any]) -> DistributionFrame | TensorHash:
        """Return the message; *tensors* are copies of `tensors` on the host."""


class Measured:
    """Distributions of one step on their way to the sender thread, which makes a message of them.

    Args:
        kind: Their kind.
        source: Where they are, and how they are sent.
        skips: Tensor that is nonzero if a gradient scaler skips the step; None for none.

    Attributes:
        kind: Their kind.
        step: The step; the sender thread sets it when it gets this for the first time.
    """

    def __init__(self, kind: str, source: Distributions, skips: Any = None) -> None:
        self.step: int | None = None
        self.kind, self._source, self._time = kind, source, monotonic_ns()
        self._tensors = [*source.tensors(), *([] if skips is None else [skips.float()])]
        self._skips = skips is not None
        self._is_here = all(tensor.device.type == "cpu" for tensor in self._tensors)
        self._event: Any = None

    def leave(self, torch: Any, pinned: dict[tuple[str, int], Any]) -> bool:
        """Start the copy to the host, into memory that is kept in *pinned*; return False if nothing has to be copied."""
        if self._is_here:
            return False
        for place, tensor in enumerate(self._tensors):
            memory = pinned.get((self.kind, place))
            if memory is None or memory.shape != tensor.shape:
                memory = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
                pinned[self.kind, place] = memory
            memory.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(self._tensors[0].device))
        return True

    def has_arrived(self, pinned: Mapping[tuple[str, int], Any]) -> bool:
        """Return whether the copy is complete; then it is no longer in *pinned* alone."""
        if not self._event.query():
            return False
        self._tensors = [pinned[self.kind, place].clone() for place in range(len(self._tensors))]
        self._is_here = True
        return True

    def frame(self) -> Any:
        """Return the message, as `Distributions.frame`; None before the copy is complete, and for gradients of a step that a scaler skipped."""
        if not self._is_here:
            return None
        if self._skips and float(self._tensors.pop()):
            return None
        frame = self._source.frame(self.kind, self._time, self._tensors)
        frame.step = self.step or 0
        return frame
