"""The curves of a run's GPUs, processes and host, each quantity once: for statistics, reports and mirrors."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trackside_daemon.causes.facts import Facts
from trackside_daemon.history.read.resources import Resource
from trackside_daemon.model.families import cgroup, gpu, host, process
from trackside_daemon.model.metric import Metric


class Quantity(NamedTuple):
    """A quantity of a resource."""

    name: str
    unit: str  # ``ratio``, ``bytes``, ``watts``, ``hertz``, ``cores``, ``workers`` or ``bytes per second``
    family: Metric  # the family that measures it
    # The label that names a resource, such as ``gpu``; empty for the host. Series of a resource are summed.
    of: str = ""

    @property
    def is_rate(self) -> bool:
        """True if the rate of the family counts."""
        return self.family.kind == "counter"


class Curve(NamedTuple):
    """A quantity of one resource over time."""

    quantity: Quantity
    of: str  # the GPU, the pid, the rank or the cgroup; empty for the host
    series: Sequence[Resource]  # the series that are summed, such as the modes of a CPU
    values: dict[float, float]  # the values by Unix time in seconds


MOST_CURVES = 200  # of a run with names; those of further processes and GPUs are left out

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


def curves(facts: Facts, quantity: Quantity) -> Iterator[Curve]:
    """Yield a curve for each resource of the run that has this quantity."""
    groups: defaultdict[str, list[Resource]] = defaultdict(list)
    for one in _selected(facts, quantity):
        groups[one.labels.get(quantity.of, "")].append(one)
    for name, series in sorted(groups.items(), key=lambda item: (len(item[0]), item[0])):
        if values := _summed(facts, quantity, series):
            yield Curve(quantity, name, series, values)


def named_curves(facts: Facts) -> dict[str, list[dict[float, float]]]:
    """Return the values of the first `MOST_CURVES` curves by name, such as ``resources/gpu_memory/gpu_0``.

    A name has several: the processes of a rank, and cgroups, are to be added up.
    """
    ranks = facts.processes()
    found: dict[str, list[dict[float, float]]] = {}
    for curve in (curve for quantity in QUANTITIES for curve in curves(facts, quantity)):
        of = {"gpu": f"/gpu_{curve.of}", "pid": f"/rank_{ranks.get(curve.of, 0)}", "rank": f"/rank_{curve.of}"}
        name = f"resources/{curve.quantity.name}{of.get(curve.quantity.of, '')}"
        if name in found or len(found) < MOST_CURVES:
            found.setdefault(name, []).append(curve.values)
    return found


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


def _summed(facts: Facts, quantity: Quantity, series: Sequence[Resource]) -> dict[float, float]:
    """Return the values at each moment of an attempt, summed over the series of one resource."""
    sums: defaultdict[float, float] = defaultdict(float)
    pauses = facts.pauses
    for one in series:
        for moment, value in one.rates if quantity.is_rate else one.points:
            if not any(began < moment < ended for began, ended in pauses):
                sums[moment] += value
    return sums
