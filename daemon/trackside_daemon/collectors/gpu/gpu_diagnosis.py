"""What ails a GPU, in words, from what it measures: for the status and the doctor, beside the alerts' own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.nvml.reading import GpuReading

PAGING = (48, 62, 64, 74, 79, 94, 95, 119, 120)
"""Xids that somebody should be woken for. Their counters begin at 0: a first value of 1 is no increase (NVIDIA/NVSentinel#1196)."""

ACTIONS = {
    1: "it needs a reset: trackside pause-gpu, then nvidia-smi --gpu-reset",
    2: "it needs a reboot of the machine",
    3: "its peers have to be drained",
    4: "its peers have to be drained, and it needs a reset",
    5: "the IMEX service has to be restarted",
    6: "its bus has to be reset",
    7: "it needs a reboot of the whole system",
}
"""By ``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION``."""

FLAGS = {
    "row_remap_pending": "a row of its memory is replaced at the next reset",
    "row_remap_failed": "a row of its memory could not be replaced: have the GPU replaced",
    "retired_pages_pending": "a page of its memory goes out of use at the next reset",
    "sram_threshold_exceeded": "its SRAM has had so many errors that NVIDIA replaces it",
}
SLOWDOWNS = ("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal")


class Ailment(NamedTuple):
    """One of them; *grave* when it does not pass by itself."""

    what: str
    grave: bool = True


def ailments(gpu: GpuReading, xids: Mapping[int, tuple[int, float]]) -> list[Ailment]:
    """All that is known, the grave ones first.

    Args:
        gpu: As it was read.
        xids: Its errors since the daemon began: how often, and when last.
    """
    values = {(family, labels): value for family, labels, value in gpu.values}
    return sorted((*_broken(values), *_errors(xids), *_slow(values)), key=lambda one: not one.grave)


def _broken(values: Mapping[tuple[str, tuple[str, ...]], float]) -> Iterator[Ailment]:
    if action := ACTIONS.get(int(values.get(("recovery_action", ()), 0)), ""):
        yield Ailment(action)
    yield from (Ailment(words) for family, words in FLAGS.items() if values.get((family, ())))
    if lost := values.get(("ecc_volatile_errors_total", ("uncorrected",))):
        yield Ailment(f"{lost:.0f} uncorrected ECC errors since the driver was loaded")
    if values.get(("fabric_healthy", ())) == 0:
        yield Ailment("its part of the NVLink fabric is not healthy")
    links, up = (values.get((family, ()), 0.0) for family in ("nvlink_links", "nvlink_links_up"))
    if 0 < up < links:  # a card without a bridge has none up
        yield Ailment(f"{up:.0f} of {links:.0f} NVLinks are up")


def _errors(xids: Mapping[int, tuple[int, float]]) -> Iterator[Ailment]:
    for number, (times, _) in sorted(xids.items()):
        if number in PAGING:
            yield Ailment(f"Xid {number}, {times} since the daemon began")


def _slow(values: Mapping[tuple[str, tuple[str, ...]], float]) -> Iterator[Ailment]:
    active = [reason for reason in SLOWDOWNS if values.get(("clock_limit_active", (reason,)))]
    if active:
        yield Ailment(f"its clocks are kept down by {', '.join(active)}", grave=False)
