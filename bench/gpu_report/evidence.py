"""Evidence that does not come from trackside, and the alerts that it justifies."""

from __future__ import annotations

import re
import shutil
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu_report.parity_columns import number

if TYPE_CHECKING:
    from collections.abc import Callable

REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_power_cap", "sw_thermal_slowdown")
COLUMNS = (
    *("utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "ecc.errors.uncorrected.volatile.total"),
    *("remapped_rows.pending", "remapped_rows.failure", "pcie.link.width.current", "pcie.link.width.max"),
    *("pcie.link.gen.gpucurrent", "pcie.link.gen.max", *(f"clocks_event_reasons.{reason}" for reason in REASONS)),
)


@dataclass
class Evidence:
    """Observations of a training by other sources.

    Attributes:
        gpus: Rows of nvidia-smi, of all GPUs and of several moments.
        pressure: The highest ``avg10`` of each resource, in percent (/proc/pressure), such as ``cpu some``.
        available: The lowest share of memory that was available (/proc/meminfo).
        durations: Seconds of each step, by the training's clock.
        waits: Seconds that each step waited for data, by the same clock.
    """

    gpus: list[dict[str, str]] = field(default_factory=list)
    pressure: dict[str, float] = field(default_factory=dict)
    available: float = 1.0
    durations: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def add_host(self) -> None:
        """Read the pressure and the memory of this moment."""
        for resource in ("cpu", "io", "memory"):
            path = Path("/proc/pressure", resource)
            for kind, share in re.findall(r"^(\w+) avg10=(\S+)", _text(path), re.MULTILINE):
                name = f"{resource} {kind}"
                self.pressure[name] = max(self.pressure.get(name, 0.0), float(share))
        sizes = {
            name: float(size)
            for name, size in re.findall(r"^(\w+):\s+(\d+)", _text(Path("/proc/meminfo")), re.MULTILINE)
        }
        if "MemAvailable" in sizes:
            self.available = min(self.available, sizes["MemAvailable"] / sizes["MemTotal"])

    def of_gpus(self, column: str) -> list[float]:
        """Return the numbers of a column at all moments."""
        numbers = (number(row[column]) for row in self.gpus if column in row)
        return [value for value in numbers if value is not None]

    def any_gpu(self, *columns: str) -> bool:
        """Return whether a column was other than 0, No or Not Active at any moment."""
        return any(value for column in columns for value in self.of_gpus(column))


def deserved(alert: str, evidence: Evidence) -> bool:
    """Return whether another source shows what the alert reports; False for alerts that nothing here can deserve."""
    check = CHECKS.get(alert)
    return check is not None and check(evidence)


def _slow_step(evidence: Evidence) -> bool:
    steps = evidence.durations[1:]
    return len(steps) > 2 and max(steps) >= 1.5 * statistics.median(steps)


def _slower(evidence: Evidence) -> bool:
    """Return whether a later fifth of the steps took longer than an earlier one, by the rule's 8 %."""
    steps = evidence.durations[1:]
    fifth = max(1, len(steps) // 5)
    medians = [statistics.median(steps[first : first + fifth]) for first in range(0, len(steps) - fifth + 1, fifth)]
    pairs = ((early, late) for place, early in enumerate(medians) for late in medians[place + 1 :])
    return any(late >= 1.08 * early for early, late in pairs)


def _link_reduced(evidence: Evidence) -> bool:
    return any(
        max(evidence.of_gpus(now), default=0.0) < max(evidence.of_gpus(most), default=0.0)
        for now, most in (
            ("pcie.link.width.current", "pcie.link.width.max"),
            ("pcie.link.gen.gpucurrent", "pcie.link.gen.max"),
        )
    )


def _memory_full(evidence: Evidence) -> bool:
    used, total = evidence.of_gpus("memory.used"), evidence.of_gpus("memory.total")
    return any(full >= 0.96 * size for full, size in zip(used, total, strict=False))


def _held_idle(evidence: Evidence) -> bool:
    rows = (row for row in evidence.gpus if number(row.get("utilization.gpu", "")) == 0)
    return any((number(row.get("memory.used", "")) or 0.0) >= 4000 for row in rows)


def _disk_full(_: Evidence) -> bool:
    mounts = [line.split()[1] for line in _text(Path("/proc/mounts")).splitlines() if line.startswith("/")]
    usages = [shutil.disk_usage(mount) for mount in {"/", "/tmp", *mounts} if Path(mount).is_dir()]
    return any(usage.total and usage.free <= 0.1 * usage.total for usage in usages)


def _shm_full(_: Evidence) -> bool:
    usage = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return usage is not None and usage.free <= 0.15 * usage.total


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# These are conditions of the machine, not of this training: a GPU that is hot, capped or
# faulty, a host that other work slows down. An alert of the loss or of a dead process is never deserved.
CHECKS: dict[str, Callable[[Evidence], bool]] = {
    "SlowStep": _slow_step,
    "ThroughputRegression": _slower,
    "DataLoaderBottleneck": lambda evidence: sum(evidence.waits) >= 0.25 * sum(evidence.durations),
    "GpuUnderutilized": lambda evidence: statistics.fmean(evidence.of_gpus("utilization.gpu") or [100.0]) <= 40.0,
    "GpuHot": lambda evidence: max(evidence.of_gpus("temperature.gpu"), default=0.0) >= 80.0,
    "GpuThrottled": lambda evidence: evidence.any_gpu(*(f"clocks_event_reasons.{reason}" for reason in REASONS[:3])),
    "GpuPowerCapped": lambda evidence: evidence.any_gpu("clocks_event_reasons.sw_power_cap"),
    "GpuMemoryPressure": _memory_full,
    "GpuIdleButHeld": _held_idle,
    "GpuEccUncorrectable": lambda evidence: evidence.any_gpu("ecc.errors.uncorrected.volatile.total"),
    "GpuRowRemap": lambda evidence: evidence.any_gpu("remapped_rows.pending", "remapped_rows.failure"),
    "PcieDegraded": _link_reduced,
    "CpuSaturated": lambda evidence: evidence.pressure.get("cpu some", 0.0) >= 40.0,
    "IoBottleneck": lambda evidence: evidence.pressure.get("io full", 0.0) >= 15.0,
    "HostMemoryPressure": lambda evidence: (
        evidence.available <= 0.07 or evidence.pressure.get("memory some", 0.0) >= 8.0
    ),
    "DiskFilling": _disk_full,
    "ShmFull": _shm_full,
}
