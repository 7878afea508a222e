"""The readers by name, as ``--collector.gpu.extra`` and ``--collector.gpu.skip`` choose them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.nvml.readers import basic, clocks, fabric, fields, gpm, health, links, thermal
from trackside_daemon.nvml.readers.busy import Busy
from trackside_daemon.nvml.readers.mig import Mig
from trackside_daemon.nvml.readers.processes import Accounting, Processes, ProcessUtilization

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

    Reader = Callable[[Any, Any, Refusals], list[Value]]


class Group(NamedTuple):
    """A reader.

    Attributes:
        make: Gives one for a GPU, which it belongs to from then on.
        extra: It is read only where it is asked for.
        every: Seconds for which what it gave is told again; 0 to read it in each cycle.
    """

    make: Callable[[], Reader]
    extra: bool = False
    every: float = 0.0


def _one(reader: Reader) -> Group:
    """A reader that remembers nothing, so that one does for all GPUs."""
    return Group(lambda: reader)


SLOW_SECONDS = 10.0


def _slow(reader: Reader) -> Group:
    """The same, of what changes seldom: limits, links, errors, health."""
    return Group(lambda: reader, every=SLOW_SECONDS)


GROUPS: dict[str, Group] = {
    "mig": Group(Mig),
    "utilization": _one(basic.utilization),
    "busy": Group(Busy),
    "gpm": Group(lambda: gpm.Gpm((*gpm.RATIOS, *gpm.RATES))),
    "cycles": Group(lambda: gpm.Gpm(gpm.CYCLES), extra=True),
    "memory": _one(basic.memory),
    "temperature": _one(thermal.temperature),
    "temperature-threshold": _slow(thermal.thresholds),
    "thermal-margin": _slow(thermal.margins),
    "fan": _one(thermal.fans),
    "fields": _one(fields.fields),
    "slow-fields": _slow(fields.slow_fields),
    "power": _one(basic.power),
    "power-limit": _slow(basic.power_limit),
    "energy": _one(basic.energy),
    "clock": _one(clocks.clocks),
    "clock-max": _slow(clocks.highest),
    "performance-state": _one(clocks.performance_state),
    "clock-limit": _one(clocks.limits),
    "pcie": _slow(links.pcie),
    "nvlink": _slow(links.nvlink),
    "c2c": _slow(links.c2c),
    "ecc": _slow(health.ecc),
    "sram": _slow(health.sram),
    "remapped-rows": _slow(health.remapped_rows),
    "row-remap-banks": _slow(health.row_remap_banks),
    "retired-pages": _slow(health.retired_pages),
    "fabric": _slow(fabric.fabric),
    "persistence": _slow(health.persistence),
    "processes": Group(Processes),
    "process-utilization": Group(ProcessUtilization),
    "engines": Group(lambda: basic.engines, extra=True),
    "bar1": Group(lambda: basic.bar1, extra=True),
    "pcie-throughput": Group(lambda: links.pcie_throughput, extra=True),
    "links": Group(lambda: links.links, extra=True),
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
