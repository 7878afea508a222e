"""GPUs that do not exist, for demonstrations and tests: a pure function of time, so a new worker goes on as the old."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.nvml.reading import GpuReading, Reading
from trackside_daemon.nvml.simulation.boards import BOARDS
from trackside_daemon.nvml.simulation.fault_times import XID, XID_SECONDS, is_lost, xids
from trackside_daemon.nvml.simulation.faults import assigned
from trackside_daemon.nvml.simulation.moment import Moment
from trackside_daemon.nvml.simulation.values import values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.nvml.reading import Value
    from trackside_daemon.nvml.simulation.boards import Board


class Start(NamedTuple):
    """When a worker began, at *begun* of the clock; Xid errors and busy seconds count from there. *epoch* is the Unix time of the clock's 0."""

    begun: float
    epoch: float


BOOT = Start(0.0, 0.0)


def simulate(
    count: int,
    now: float,
    profile: str = "h100",
    troubles: Iterable[str] = (),
    start: Start = BOOT,
) -> Reading:
    """GPUs under training at a moment.

    Args:
        count: How many.
        now: Seconds of a clock that only goes forward.
        profile: Which board they are: a name of `BOARDS`.
        troubles: What ails them, as in `assigned`.
        start: When the worker began.

    Raises:
        ValueError: There is no such profile, trouble or GPU.
    """
    if profile not in BOARDS:
        raise ValueError(f"no simulated profile {profile!r}; there are {', '.join(BOARDS)}")
    board = BOARDS[profile]
    all_ails = assigned(troubles, count)
    gpus = [
        GpuReading(
            index, uuid(index), _info(board, index, count), _values(Moment(board, index, now, ails, start.begun))
        )
        for index, ails in enumerate(all_ails)
    ]
    return Reading(gpus, xids=_xids(all_ails, now, start))


def _xids(all_ails: list[frozenset[str]], now: float, start: Start) -> dict[str, dict[int, tuple[int, float]]]:
    """As in `Reading`, since the worker began."""
    errors = {}
    for index, ails in enumerate(all_ails):
        happened, before = xids(ails, now), xids(ails, start.begun)
        if happened > before:
            errors[uuid(index)] = {XID: (happened - before, start.epoch + happened * XID_SECONDS)}
    return errors


def uuid(index: int) -> str:
    """Of the GPU with that number."""
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
        "numa_node": str(2 * index // count),
        "source": "simulated",
    }


def _values(gpu: Moment) -> list[Value]:
    return [("up", (), 0.0)] if is_lost(gpu.ails, gpu.now) else values(gpu)
