"""List the faults of a GPU in words, for the status API and `trackside doctor`; alerts have their own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.nvml.reading import GpuReading

# Their counters start at 0, because Prometheus sees no increase in a first value of 1 (NVIDIA/NVSentinel#1196).
PAGING = (48, 62, 64, 74, 79, 94, 95, 119, 120)  # xid errors that justify waking somebody

# Remedy by value of `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
ACTIONS = {
    1: "it needs a reset: run trackside pause-gpu, then nvidia-smi --gpu-reset",
    2: "it needs a reboot of the machine",
    3: "drain its peers",
    4: "drain its peers, then reset it",
    5: "restart the IMEX service",
    6: "reset its bus",
    7: "it needs a reboot of the whole system",
}

FLAGS = {
    "row_remap_pending": "a memory row is replaced at the next reset",
    "row_remap_failed": "a memory row could not be replaced: replace the GPU",
    "retired_pages_pending": "a memory page is retired at the next reset",
    "sram_threshold_exceeded": "its SRAM error count exceeds the threshold at which NVIDIA replaces the GPU",
}
SLOWDOWNS = ("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal")


class GpuFault(NamedTuple):
    """A fault in words; *grave* when it does not pass without intervention."""

    what: str
    grave: bool = True


def faults(gpu: GpuReading, xids: Mapping[int, tuple[int, float]]) -> list[GpuFault]:
    """Return the faults of a GPU, the grave ones first.

    Args:
        gpu: The last reading of the GPU.
        xids: Count and last Unix time of each Xid error since the daemon started.
    """
    values = {(family, labels): value for family, labels, value in gpu.values}
    return sorted((*_broken(values), *_errors(xids), *_slow(values)), key=lambda fault: not fault.grave)


def _broken(values: Mapping[tuple[str, tuple[str, ...]], float]) -> Iterator[GpuFault]:
    if action := ACTIONS.get(int(values.get(("recovery_action", ()), 0)), ""):
        yield GpuFault(action)
    yield from (GpuFault(words) for family, words in FLAGS.items() if values.get((family, ())))
    if lost := values.get(("ecc_volatile_errors_total", ("uncorrected",))):
        yield GpuFault(f"{lost:.0f} uncorrected ECC errors since the driver was loaded")
    if values.get(("fabric_healthy", ())) == 0:
        yield GpuFault("its part of the NVLink fabric is not healthy")
    links, up = (values.get((family, ()), 0.0) for family in ("nvlink_links", "nvlink_links_up"))
    if 0 < up < links:  # a card without a bridge has none up
        yield GpuFault(f"{up:.0f} of {links:.0f} NVLinks are up")


def _errors(xids: Mapping[int, tuple[int, float]]) -> Iterator[GpuFault]:
    for number, (times, _) in sorted(xids.items()):
        if number in PAGING:
            yield GpuFault(f"Xid {number}, {times} since the daemon started")


def _slow(values: Mapping[tuple[str, tuple[str, ...]], float]) -> Iterator[GpuFault]:
    active = [reason for reason in SLOWDOWNS if values.get(("clock_limit_active", (reason,)))]
    if active:
        yield GpuFault(f"its clocks are reduced by {', '.join(active)}", grave=False)
