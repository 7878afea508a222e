"""Groups of readers, which ``--collector.gpu.extra`` and ``--collector.gpu.skip`` select by name."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from trackside_daemon.nvml.readers import basic, clocks, fields, gpm, health, links, thermal
from trackside_daemon.nvml.readers.busy import BusyTime
from trackside_daemon.nvml.readers.mig import MigReader
from trackside_daemon.nvml.readers.processes import Accounting, Processes, ProcessUtilization
from trackside_daemon.nvml.readers.unsupported import Unsupported
from trackside_daemon.nvml.reading import Value

Reader = Callable[[Any, Any, Unsupported], list[Value]]


class ReaderGroup(NamedTuple):
    """A reader, and when to read it."""

    new_reader: Callable[[], Reader]  # makes the reader of one GPU
    extra: bool = False  # whether to read it only on request
    every: float = 0.0  # seconds for which its values are cached; 0 to read it in each cycle


def _stateless(reader: Reader) -> ReaderGroup:
    """Return the group of a reader without state, which all GPUs share."""
    return ReaderGroup(lambda: reader)


SLOW_SECONDS = 10.0


def _slow(reader: Reader) -> ReaderGroup:
    """Return the group of a stateless reader whose values change rarely: limits, links, errors, health."""
    return ReaderGroup(lambda: reader, every=SLOW_SECONDS)


# Groups in the order in which they are read. MIG comes first, because it changes what the others can read.
GROUPS: dict[str, ReaderGroup] = {
    "mig": ReaderGroup(MigReader),
    "utilization": _stateless(basic.utilization),
    "busy": ReaderGroup(BusyTime),
    "gpm": ReaderGroup(lambda: gpm.GpmReader((*gpm.RATIOS, *gpm.RATES))),
    "cycles": ReaderGroup(lambda: gpm.GpmReader(gpm.CYCLES), extra=True),
    "memory": _stateless(basic.memory),
    "temperature": _stateless(thermal.temperature),
    "temperature-threshold": _slow(thermal.thresholds),
    "thermal-margin": _slow(thermal.margins),
    "fan": _stateless(thermal.fans),
    "fields": _stateless(fields.fields),
    "slow-fields": _slow(fields.slow_fields),
    "power": _stateless(basic.power),
    "power-limit": _slow(basic.power_limit),
    "energy": _stateless(basic.energy),
    "clock": _stateless(clocks.clocks),
    "clock-max": _slow(clocks.max_clocks),
    "performance-state": _stateless(clocks.performance_state),
    "clock-limit": _stateless(clocks.active_limits),
    "pcie": _slow(links.pcie),
    "nvlink": _slow(links.nvlink),
    "c2c": _slow(links.c2c),
    "ecc": _slow(health.ecc),
    "sram": _slow(health.sram),
    "remapped-rows": _slow(health.remapped_rows),
    "row-remap-banks": _slow(health.row_remap_banks),
    "retired-pages": _slow(health.retired_pages),
    "fabric": _slow(links.fabric),
    "persistence": _slow(health.persistence),
    "processes": ReaderGroup(Processes),
    "process-utilization": ReaderGroup(ProcessUtilization),
    "engines": ReaderGroup(lambda: basic.engines, extra=True),
    "bar1": ReaderGroup(lambda: basic.bar1, extra=True),
    "pcie-throughput": ReaderGroup(lambda: links.pcie_throughput, extra=True),
    "links": ReaderGroup(lambda: links.links, extra=True),
    "accounting": ReaderGroup(Accounting, extra=True),
}


def selected_groups(extra: Iterable[str] = (), skip: Iterable[str] = ()) -> dict[str, ReaderGroup]:
    """Return the default groups and those of *extra*, which may contain ``all``, without those of *skip*."""
    wanted = set(extra)
    unwanted = set(skip)
    return {
        name: group
        for name, group in GROUPS.items()
        if name not in unwanted and (not group.extra or name in wanted or "all" in wanted)
    }
