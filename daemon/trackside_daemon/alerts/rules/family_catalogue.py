"""Catalogue of the families that a rule can name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.collectors.cgroup.cgroup import CgroupCollector
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.collectors.gpu.nvml_worker import NvmlCollector
from trackside_daemon.collectors.host.cpu import CpuCollector
from trackside_daemon.collectors.host.disk import DiskCollector
from trackside_daemon.collectors.host.filesystem.filesystem import FilesystemCollector
from trackside_daemon.collectors.host.infiniband import InfinibandCollector
from trackside_daemon.collectors.host.load import LoadCollector
from trackside_daemon.collectors.host.memory import MemoryCollector
from trackside_daemon.collectors.host.network import NetworkCollector
from trackside_daemon.collectors.host.pressure import PressureCollector
from trackside_daemon.collectors.host.thermal import ThermalCollector
from trackside_daemon.collectors.host.time import TimeCollector
from trackside_daemon.collectors.host.vmstat import VmstatCollector
from trackside_daemon.collectors.process.process import ProcessCollector
from trackside_daemon.collectors.process.ranks import RanksCollector
from trackside_daemon.collectors.ray.families import FAMILIES as RAY
from trackside_daemon.detectors.straggler import RATIO
from trackside_daemon.history.record import writer
from trackside_daemon.model import training_families as families
from trackside_daemon.model.layer_families import COLUMNS
from trackside_daemon.model.metric import Metric
from trackside_daemon.model.rl_families import FAMILIES as RL

if TYPE_CHECKING:
    from collections.abc import Iterable

_COLLECTORS = (
    CpuCollector,
    LoadCollector,
    MemoryCollector,
    VmstatCollector,
    PressureCollector,
    DiskCollector,
    FilesystemCollector,
    NetworkCollector,
    InfinibandCollector,
    CgroupCollector,
    ProcessCollector,
    TimeCollector,
    ThermalCollector,
    GpuCollector,
    NvmlCollector,
    RanksCollector,
)


def catalogue(more: Iterable[Metric] = ()) -> dict[str, Metric]:
    """Return the families of collectors, trainings and the history, by name, with *more* from the layers above."""
    training = (value for value in vars(families).values() if isinstance(value, Metric))
    metrics = [
        *training,
        *families.KNOWN.values(),
        *families.MEMORY.values(),
        *RAY,
        *RL,
        *COLUMNS.values(),
        writer.SIZE,
        writer.SAMPLES,
        writer.EXCESS,
        *more,
    ]
    metrics += [RATIO, *(metric for collector in _COLLECTORS for metric in collector.metrics)]
    return {metric.name: metric for metric in metrics}
