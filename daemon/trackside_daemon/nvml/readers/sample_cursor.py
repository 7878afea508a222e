"""Samples that the driver stamps and keeps in a ring, each seen once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Sample = TypeVar("Sample")

PATIENCE = 10
"""Cycles without a new sample, after which the clock that stamps them may have been set back."""


class Seen:
    """How far the samples of one kind, of one GPU, have been seen.

    Attributes:
        last: The stamp of the newest, in microseconds; 0 before the first.
    """

    def __init__(self) -> None:
        self.last = 0
        self._empty = 0

    def new(self, nvml: Any, ask: Callable[[int], list[tuple[int, Sample]]]) -> list[tuple[int, Sample]]:
        """What *ask*, told the last stamp, answers by stamps: those not seen before, oldest first.

        The first answer is only learnt from: it has all that the ring holds. NVML says in three ways that there is none.

        Raises:
            NVMLError: The driver refuses.
        """
        since = self.last
        try:
            answer = ask(since)
        except nvml.NVMLError as error:
            if error.value not in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_NO_DATA):
                raise
            answer = []
        # pynvml asks twice, and the array of the second call may have more places than there are samples.
        unseen = sorted((sample for sample in answer if sample[0] > since), key=lambda sample: sample[0])
        self._empty = 0 if unseen else self._empty + 1
        if unseen:
            self.last = unseen[-1][0]
        elif self._empty > PATIENCE:
            self.last = self._empty = 0
        return unseen if since else []
