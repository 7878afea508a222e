"""GPU performance monitoring, on Hopper and later: what the hardware counted between two samples.

GPUs are sampled one after the other: in parallel it ends in a crash (leptonai/gpud). Whether one can be sampled is learnt
from its first sample: the query for that has answered no where it was yes (NVIDIA/go-nvml#168).
"""

from __future__ import annotations

import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

SHORTEST, LONGEST = 0.1, 180.0
"""Seconds between two samples: NVML wants a tenth at least, and a mean of minutes says nothing about now."""


MEBIBYTE = 2**20


class Quantity(NamedTuple):
    """A number of ``nvmlGpmMetricId_t``, and the family that it becomes, *per* of its units in one."""

    number: int
    family: str
    labels: tuple[str, ...] = ()
    per: float = 100

    @property
    def name(self) -> str:
        """As it stands among the refusals."""
        return f"{self.family}{{{self.labels[0]}}}" if self.labels else self.family


RATIOS = (
    Quantity(1, "graphics_engine_active_ratio"),
    Quantity(2, "sm_active_ratio"),
    Quantity(3, "sm_occupancy_ratio"),
    Quantity(5, "tensor_active_ratio"),
    Quantity(10, "dram_active_ratio"),
    Quantity(7, "pipe_active_ratio", ("hmma",)),
    Quantity(9, "pipe_active_ratio", ("imma",)),
    Quantity(6, "pipe_active_ratio", ("dfma",)),
    Quantity(8, "pipe_active_ratio", ("dmma",)),
    Quantity(11, "pipe_active_ratio", ("fp64",)),
    Quantity(12, "pipe_active_ratio", ("fp32",)),
    Quantity(13, "pipe_active_ratio", ("fp16",)),
    Quantity(4, "pipe_active_ratio", ("integer",)),
)
RATES = (
    Quantity(20, "pcie_transmit_bytes_per_second", per=1 / MEBIBYTE),
    Quantity(21, "pcie_receive_bytes_per_second", per=1 / MEBIBYTE),
)
CYCLES = (
    Quantity(248, "sm_cycles_total", per=1),
    Quantity(249, "sm_active_cycles_total", per=1),
    Quantity(250, "tensor_active_cycles_total", per=1),
)


class Gpm:
    """The *quantities* of a whole GPU, each cycle over the time since the cycle before."""

    def __init__(self, quantities: Sequence[Quantity], clock: Callable[[], float] = time.monotonic) -> None:
        self._quantities = quantities
        self._window = Window(clock)

    def __call__(self, nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
        """``nvmlGpmSampleGet`` and ``nvmlGpmMetricsGet``, in percent, in MiB/s, or in cycles since boot."""
        return self._window.read(nvml, partial(nvml.nvmlGpmSampleGet, handle), self._quantities, refusals)


class Window:
    """Two samples, allocated once: the last cycle's, and the one that this cycle overwrites.

    Args:
        clock: Seconds of a clock that only goes forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: list[Any] = []
        self._taken_at = float("-inf")
        self._era = -1

    def read(
        self, nvml: Any, take: Callable[[Any], object], quantities: Sequence[Quantity], refusals: Refusals
    ) -> list[Value]:
        """Takes a sample with *take*, and says what was counted since the one before; nothing where that is no use.

        Raises:
            NVMLError: A sample cannot be had, which is so on GPUs before Hopper.
        """
        since, era = self._clock() - self._taken_at, refusals.cleared
        if era == self._era and since < SHORTEST:
            return []
        self._samples = self._samples[::-1] or [self._allocated(nvml), self._allocated(nvml)]
        usable = era == self._era and since <= LONGEST
        self._taken_at = float("-inf")
        take(self._samples[1])
        self._taken_at, self._era = self._clock(), era
        return _measured(nvml, self._samples, quantities, refusals) if usable else []

    def _allocated(self, nvml: Any) -> Any:
        sample = nvml.nvmlGpmSampleAlloc()
        # Not at the interpreter's end: that frees it anyway, and NVML may be gone by then.
        weakref.finalize(self, _free, nvml, sample).atexit = False
        return sample


def _free(nvml: Any, sample: Any) -> None:
    try:
        nvml.nvmlGpmSampleFree(sample)
    except nvml.NVMLError:
        return


def _measured(nvml: Any, samples: list[Any], quantities: Sequence[Quantity], refusals: Refusals) -> list[Value]:
    """``nvmlGpmMetricsGet`` of all *quantities* at once; each has a status of its own."""
    asked = [quantity for quantity in quantities if quantity.name not in refusals]
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(asked)
    request.sample1, request.sample2 = samples
    for metric, quantity in zip(request.metrics, asked, strict=False):
        metric.metricId = quantity.number
    if asked:
        nvml.nvmlGpmMetricsGet(request)
    values: list[Value] = []
    for metric, quantity in zip(request.metrics, asked, strict=False):
        if metric.nvmlReturn == nvml.NVML_ERROR_GPU_IS_LOST:
            raise nvml.NVMLError(metric.nvmlReturn)
        if metric.nvmlReturn:
            refusals.add(quantity.name, nvml.result(metric.nvmlReturn))
        else:
            values.append((quantity.family, quantity.labels, metric.value / quantity.per))
    return values
