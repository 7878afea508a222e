"""The statistics of a run's GPUs, host and processes over its time, per rank and in all."""

from __future__ import annotations

from collections import defaultdict
from math import sqrt
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.model.families import cgroup, gpu, host, process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.causes.facts import Facts
    from trackside_daemon.history.read.resources import Resource
    from trackside_daemon.model.metric import Metric


class Quantity(NamedTuple):
    """A quantity of a resource.

    Attributes:
        name: Its name.
        unit: ``ratio``, ``bytes``, ``watts``, ``hertz``, ``cores``, ``workers`` or ``bytes per second``.
        family: The family that measures it.
        of: The label that names a resource, such as ``gpu``; empty for the host. Series of a resource are summed.
    """

    name: str
    unit: str
    family: Metric
    of: str = ""

    @property
    def is_rate(self) -> bool:
        """True if the rate of the family counts."""
        return self.family.kind == "counter"


QUANTITIES = (
    Quantity("gpu_utilization", "ratio", gpu.UTILIZATION, "gpu"),
    Quantity("gpu_sm_active", "ratio", gpu.SM_ACTIVE, "gpu"),
    Quantity("gpu_tensor_active", "ratio", gpu.TENSOR_ACTIVE, "gpu"),
    Quantity("gpu_memory", "bytes", gpu.MEMORY_USED, "gpu"),
    Quantity("gpu_power", "watts", gpu.POWER, "gpu"),
    Quantity("gpu_sm_clock", "hertz", gpu.CLOCK, "gpu"),
    Quantity("process_cpu", "cores", process.CPU, "pid"),
    Quantity("process_memory", "bytes", process.RESIDENT, "pid"),
    Quantity("dataloader_cpu", "cores", process.WORKERS_CPU, "rank"),
    Quantity("dataloader_workers", "workers", process.WORKERS, "rank"),
    Quantity("cgroup_memory", "bytes", cgroup.WORKING_SET, "cgroup"),
    Quantity("host_cpu", "cores", host.CPU_SECONDS),
    Quantity("host_memory_available", "bytes", host.MEMORY_AVAILABLE),
    Quantity("disk_read", "bytes per second", host.DISK_READ),
    Quantity("disk_written", "bytes per second", host.DISK_WRITTEN),
    Quantity("network_received", "bytes per second", host.NETWORK_RECEIVED),
    Quantity("network_sent", "bytes per second", host.NETWORK_SENT),
)


def resources(facts: Facts) -> list[dict[str, Any]]:
    """Return a row for each quantity of each resource, and one for all resources of a kind together.

    Returns:
        ``quantity``, ``unit``; ``of``: the GPU, the pid or the cgroup, empty for the host and for all together; ``ranks``
        that use it; ``mean``, ``std``, ``min``, ``max``, ``p50``, ``p95``. Values between the samples of the history are
        in the extremes of a long run alone.
    """
    return [row for quantity in QUANTITIES for row in _rows(facts, quantity)]


def _rows(facts: Facts, quantity: Quantity) -> Iterator[dict[str, Any]]:
    groups: defaultdict[str, list[Resource]] = defaultdict(list)
    for series in _selected(facts, quantity):
        groups[series.labels.get(quantity.of, "")].append(series)
    each = {name: _summed(quantity, series) for name, series in groups.items()}
    known = {name: values for name, values in each.items() if values}
    for name, values in sorted(known.items(), key=lambda item: (len(item[0]), item[0])):
        one = groups[name] if len(groups[name]) == 1 and not quantity.is_rate else []
        yield _row(quantity, name, _ranks(facts, quantity, groups[name][0], name), values, one)
    if len(known) > 1:
        every = [value for values in known.values() for value in values]
        gauges = [] if quantity.is_rate else [series for name in known for series in groups[name]]
        yield _row(quantity, "", sorted({rank for span in facts.spans for rank in [span.rank]}), every, gauges)


def _selected(facts: Facts, quantity: Quantity) -> list[Resource]:
    """Return the series of the run's own GPUs, processes and cgroups."""
    if quantity.of == "gpu":
        return facts.gpus(quantity.family)
    if quantity.of == "pid":
        own = facts.processes()
        return [one for one in facts.of(quantity.family) if one.labels.get("pid") in own]
    if quantity.of == "cgroup":
        return facts.cgroups(quantity.family)
    return facts.of(quantity.family, **({"run": facts.run["name"]} if quantity.of == "rank" else {}))


def _summed(quantity: Quantity, series: Sequence[Resource]) -> list[float]:
    """Return the values at each moment, summed over the series of one resource, such as the modes of a CPU."""
    sums: defaultdict[float, float] = defaultdict(float)
    for one in series:
        for moment, value in one.rates if quantity.is_rate else one.points:
            sums[moment] += value
    return list(sums.values())


def _ranks(facts: Facts, quantity: Quantity, series: Resource, name: str) -> list[int]:
    if quantity.of == "gpu":
        return sorted(facts.gpu_ranks().get(series.labels.get("uuid", ""), ()))
    if quantity.of == "pid":
        return [facts.processes()[name]]
    return [int(name)] if quantity.of == "rank" else []


def _row(
    quantity: Quantity, of: str, ranks: Sequence[int], values: Sequence[float], series: Sequence[Resource]
) -> dict[str, Any]:
    lows = [one.low for one in series if one.low is not None]
    highs = [one.high for one in series if one.high is not None]
    mean = fmean(values)
    parts = quantiles(values, n=20, method="inclusive") if len(values) > 1 else [values[0]] * 19
    return {
        "quantity": quantity.name,
        "unit": quantity.unit,
        "of": of,
        "ranks": list(ranks),
        "mean": mean,
        "std": sqrt(max(0.0, fmean(value * value for value in values) - mean * mean)),
        "min": min(*values, *lows, values[0]),
        "max": max(*values, *highs, values[0]),
        "p50": parts[9],
        "p95": parts[18],
    }
