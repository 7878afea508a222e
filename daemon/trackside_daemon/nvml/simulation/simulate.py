"""Readings of GPUs that do not exist, as a pure function of time, so that a new worker continues the old one's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.nvml.reading import DOWN, GpuReading, Reading
from trackside_daemon.nvml.simulation.boards import BOARDS
from trackside_daemon.nvml.simulation.fault_times import XID, XID_SECONDS, is_lost, xids
from trackside_daemon.nvml.simulation.faults import faults_by_gpu
from trackside_daemon.nvml.simulation.simulated_gpu import SimulatedGpu
from trackside_daemon.nvml.simulation.values import values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.nvml.reading import Value
    from trackside_daemon.nvml.simulation.boards import Board


class WorkerStart(NamedTuple):
    """Start of a worker, from which it counts Xid errors and busy seconds.

    Attributes:
        monotonic: The start, by the simulation's clock.
        epoch: Unix time of that clock's 0.
    """

    monotonic: float
    epoch: float


BOOT = WorkerStart(0.0, 0.0)


def simulate(
    count: int,
    now: float,
    profile: str = "h100",
    faults: Iterable[str] = (),
    start: WorkerStart = BOOT,
) -> Reading:
    """Return the reading of GPUs in training at one moment.

    Args:
        count: Number of GPUs.
        now: Seconds of a monotonic clock.
        profile: Board of the GPUs: a name of `BOARDS`.
        faults: Faults of the GPUs, as in `faults_by_gpu`.
        start: Start of the worker.

    Raises:
        ValueError: There is no such profile, fault or GPU.
    """
    if profile not in BOARDS:
        raise ValueError(f"no simulated profile {profile!r}; the profiles are {', '.join(BOARDS)}")
    board = BOARDS[profile]
    by_gpu = faults_by_gpu(faults, count)
    states = (SimulatedGpu(board, index, now, own, start.monotonic) for index, own in enumerate(by_gpu))
    gpus = [GpuReading(gpu.index, uuid(gpu.index), _info(board, gpu.index, count), _values(gpu)) for gpu in states]
    return Reading(gpus, xids=_xids(by_gpu, now, start))


def _xids(by_gpu: list[frozenset[str]], now: float, start: WorkerStart) -> dict[str, dict[int, tuple[int, float]]]:
    errors = {}
    for index, faults in enumerate(by_gpu):
        total = xids(faults, now)
        before = xids(faults, start.monotonic)
        if total > before:
            errors[uuid(index)] = {XID: (total - before, start.epoch + total * XID_SECONDS)}
    return errors


def uuid(index: int) -> str:
    """Return the UUID of the simulated GPU with this index."""
    return f"GPU-00000000-0000-0000-0000-{index:012x}"


def _info(board: Board, index: int, count: int) -> dict[str, str]:
    return {
        "name": board.name,
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "serial": "",
        "vbios_version": board.vbios,
        "architecture": board.architecture,
        "compute_capability": board.compute_capability,
        "minor": str(index),
        "numa_node": str(2 * index // count),  # as on a machine with two sockets
        "source": "simulated",
    }


def _values(gpu: SimulatedGpu) -> list[Value]:
    return DOWN if is_lost(gpu.faults, gpu.now) else values(gpu)
