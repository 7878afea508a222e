"""GPU performance monitoring (GPM), on Hopper and later: hardware counters between two samples."""

import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from trackside_daemon.nvml.readers.unsupported import Unsupported, series
from trackside_daemon.nvml.reading import Value

MIN_SECONDS = 0.1  # seconds between two samples that NVML requires
MAX_SECONDS = 180.0  # seconds between two samples after which their mean no longer describes the present


MEBIBYTE = 2**20


class GpmMetric(NamedTuple):
    """A number of ``nvmlGpmMetricId_t``, its series, and the number of its units in one of the family's."""

    number: int
    family: str
    labels: tuple[str, ...] = ()
    divisor: float = 100

    @property
    def name(self) -> str:
        """Name among the unsupported calls."""
        return series(self.family, self.labels)


RATIOS = (
    GpmMetric(1, "graphics_engine_active_ratio"),
    GpmMetric(2, "sm_active_ratio"),
    GpmMetric(3, "sm_occupancy_ratio"),
    GpmMetric(5, "tensor_active_ratio"),
    GpmMetric(10, "dram_active_ratio"),
    GpmMetric(7, "pipe_active_ratio", ("hmma",)),
    GpmMetric(9, "pipe_active_ratio", ("imma",)),
    GpmMetric(6, "pipe_active_ratio", ("dfma",)),
    GpmMetric(8, "pipe_active_ratio", ("dmma",)),
    GpmMetric(11, "pipe_active_ratio", ("fp64",)),
    GpmMetric(12, "pipe_active_ratio", ("fp32",)),
    GpmMetric(13, "pipe_active_ratio", ("fp16",)),
    GpmMetric(4, "pipe_active_ratio", ("integer",)),
)
RATES = (
    GpmMetric(20, "pcie_transmit_bytes_per_second", divisor=1 / MEBIBYTE),
    GpmMetric(21, "pcie_receive_bytes_per_second", divisor=1 / MEBIBYTE),
)
CYCLES = (
    GpmMetric(248, "sm_cycles_total", divisor=1),
    GpmMetric(249, "sm_active_cycles_total", divisor=1),
    GpmMetric(250, "tensor_active_cycles_total", divisor=1),
)


class GpmReader:
    """Metrics of a whole GPU, in each cycle over the time since the cycle before."""

    def __init__(self, metrics: Sequence[GpmMetric], clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._samples = SamplePair(clock)

    def __call__(self, nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
        """Read ``nvmlGpmSampleGet`` and ``nvmlGpmMetricsGet``, in percent, in MiB/s, or in cycles since boot."""
        return self._samples.read(nvml, partial(nvml.nvmlGpmSampleGet, handle), self._metrics, unsupported)


class SamplePair:
    """Two samples, allocated once: that of the last cycle, and the one that this cycle overwrites.

    Args:
        clock: Monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: list[Any] = []
        self._sampled_at = float("-inf")
        self._generation = -1

    def read(
        self, nvml: Any, sample: Callable[[Any], object], metrics: Sequence[GpmMetric], unsupported: Unsupported
    ) -> list[Value]:
        """Sample the GPU with *sample*; return the metrics since the sample before, if the two are comparable.

        Raises:
            NVMLError: The GPU cannot be sampled; GPUs before Hopper cannot.
        """
        elapsed = self._clock() - self._sampled_at
        generation = unsupported.generation
        if generation == self._generation and elapsed < MIN_SECONDS:
            return []
        self._samples = self._samples[::-1] or [self._allocate(nvml), self._allocate(nvml)]
        comparable = generation == self._generation and elapsed <= MAX_SECONDS
        # If this sample fails, the next one has no predecessor with which it can be compared.
        self._sampled_at = float("-inf")
        # The first sample shows whether the GPU supports GPM: the query for it has been wrong (NVIDIA/go-nvml#168).
        # The GPUs are sampled one after the other, because parallel samples can crash (leptonai/gpud).
        sample(self._samples[1])
        self._sampled_at = self._clock()
        self._generation = generation
        return _metrics_between(nvml, self._samples, metrics, unsupported) if comparable else []

    def _allocate(self, nvml: Any) -> Any:
        sample = nvml.nvmlGpmSampleAlloc()
        # Not at the end of the interpreter: that frees it anyway, and NVML may be gone by then.
        weakref.finalize(self, _free, nvml, sample).atexit = False
        return sample


def _free(nvml: Any, sample: Any) -> None:
    try:
        nvml.nvmlGpmSampleFree(sample)
    except nvml.NVMLError:
        return


def _metrics_between(
    nvml: Any, samples: list[Any], metrics: Sequence[GpmMetric], unsupported: Unsupported
) -> list[Value]:
    """Call ``nvmlGpmMetricsGet`` once for all supported metrics; each has a separate status."""
    wanted = [metric for metric in metrics if metric.name not in unsupported]
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version = nvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(wanted)
    request.sample1, request.sample2 = samples
    for answer, metric in zip(request.metrics, wanted, strict=False):
        answer.metricId = metric.number
    if wanted:
        nvml.nvmlGpmMetricsGet(request)
    values: list[Value] = []
    for answer, metric in zip(request.metrics, wanted, strict=False):
        if answer.nvmlReturn == nvml.NVML_ERROR_GPU_IS_LOST:
            raise nvml.NVMLError(answer.nvmlReturn)
        if answer.nvmlReturn:
            unsupported.add(metric.name, nvml.result(answer.nvmlReturn))
        else:
            values.append((metric.family, metric.labels, answer.value / metric.divisor))
    return values
