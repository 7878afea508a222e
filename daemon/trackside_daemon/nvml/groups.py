"""The readers by name, as ``--collector.gpu.extra`` and ``--collector.gpu.skip`` choose them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.nvml.readers import basic, clocks, fabric, fields, gpm, health, links, thermal
from trackside_daemon.nvml.readers.busy import Busy
from trackside_daemon.nvml.readers.mig import Mig
from trackside_daemon.nvml.readers.processes import Accounting, Processes, ProcessUtilization

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trackside_daemon.nvml.reading import Value
    from trackside_daemon.nvml.refusals import Refusals

    Reader = Callable[[Any, Any, Refusals], list[Value]]


class Group(NamedTuple):
    """A reader.

    Attributes:
        make: Gives one for a GPU, which it belongs to from then on.
        extra: It is read only where it is asked for.
    """

    make: Callable[[], Reader]
    extra: bool = False


def _one(reader: Reader) -> Group:
    """A reader that remembers nothing, so that one does for all GPUs."""
    return Group(lambda: reader)


GROUPS: dict[str, Group] = {
    "mig": Group(Mig),
    "utilization": _one(basic.utilization),
    "busy": Group(Busy),
    "gpm": Group(lambda: gpm.Gpm(gpm.RATIOS)),
    "cycles": Group(lambda: gpm.Gpm(gpm.CYCLES), extra=True),
    "memory": _one(basic.memory),
    "temperature": _one(thermal.temperature),
    "temperature-threshold": _one(thermal.thresholds),
    "thermal-margin": _one(thermal.margins),
    "fan": _one(thermal.fans),
    "fields": _one(fields.fields),
    "power": _one(basic.power),
    "power-limit": _one(basic.power_limit),
    "energy": _one(basic.energy),
    "clock": _one(clocks.clocks),
    "performance-state": _one(clocks.performance_state),
    "clock-limit": _one(clocks.limits),
    "pcie": _one(links.pcie),
    "nvlink": _one(links.nvlink),
    "c2c": _one(links.c2c),
    "ecc": _one(health.ecc),
    "sram": _one(health.sram),
    "remapped-rows": _one(health.remapped_rows),
    "row-remap-banks": _one(health.row_remap_banks),
    "retired-pages": _one(health.retired_pages),
    "fabric": _one(fabric.fabric),
    "persistence": _one(health.persistence),
    "engines": Group(lambda: basic.engines, extra=True),
    "bar1": Group(lambda: basic.bar1, extra=True),
    "pcie-throughput": Group(lambda: links.pcie_throughput, extra=True),
    "links": Group(lambda: links.links, extra=True),
    "processes": Group(Processes),
    "process-utilization": Group(ProcessUtilization),
    "accounting": Group(Accounting, extra=True),
}
"""In the order in which they are read: what MIG makes of the GPU is known before the others are asked."""


def chosen(extra: Iterable[str] = (), skip: Iterable[str] = ()) -> dict[str, Group]:
    """The groups that are read: the default ones, those of *extra*, which may say ``all``, and none of *skip*."""
    wanted, unwanted = set(extra), set(skip)
    return {
        name: group
        for name, group in GROUPS.items()
        if name not in unwanted and (not group.extra or name in wanted or "all" in wanted)
    }
