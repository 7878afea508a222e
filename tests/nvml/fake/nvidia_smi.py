"""A fake ``nvidia-smi`` that answers from the scenario of the C fake, in the words of the real one.

It supports ``--query-gpu=COLUMN,... --format=csv,noheader,nounits`` and ``--query-compute-apps=pid,used_memory``, and refuses
a column that is not in its table, as the real one does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Format = Callable[[list[str]], str]

MIB = 2**20
SWITCH = ("Disabled", "Enabled")
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
BANKS = ("max", "high", "partial", "low", "none")
FABRIC = ("Not Supported", "Not Started", "In Progress", "Completed")
COUNTERS = {
    "sw_power_cap": 74,
    "sync_boost": 76,
    "sw_thermal_slowdown": 269,
    "hw_thermal_slowdown": 270,
    "hw_power_brake_slowdown": 271,
}


def word(place: int = 0) -> Format:
    return lambda words: words[place]


def mebibytes(place: int) -> Format:
    return lambda words: str(round(int(words[place]) / MIB))


def watts(words: list[str]) -> str:
    return f"{int(words[-1]) / 1000:.2f}"


def microseconds(words: list[str]) -> str:
    return str(int(words[-1]) // 1000)


def joined(separator: str) -> Format:
    return separator.join


def switch(words: list[str]) -> str:
    return SWITCH[int(words[0])]


def reason(bit: int) -> Format:
    return lambda words: "Active" if int(words[0]) & bit else "Not Active"


ECC = "nvmlDeviceGetTotalEccErrors"
REMAPPED = "nvmlDeviceGetRemappedRows"
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
COLUMNS: dict[str, tuple[str, Format]] = {
    "uuid": ("nvmlDeviceGetUUID", joined(" ")),
    "name": ("nvmlDeviceGetName", joined(" ")),
    "serial": ("nvmlDeviceGetSerial", joined(" ")),
    "vbios_version": ("nvmlDeviceGetVbiosVersion", joined(" ")),
    "pci.bus_id": ("nvmlDeviceGetPciInfo_v3", joined(" ")),
    "compute_cap": ("nvmlDeviceGetCudaComputeCapability", joined(".")),
    "driver_version": ("nvmlSystemGetDriverVersion", joined(" ")),
    "memory.total": (MEMORY, mebibytes(0)),
    "memory.reserved": (MEMORY, mebibytes(1)),
    "memory.free": (MEMORY, mebibytes(2)),
    "memory.used": (MEMORY, mebibytes(3)),
    "utilization.gpu": ("nvmlDeviceGetUtilizationRates", word(0)),
    "utilization.memory": ("nvmlDeviceGetUtilizationRates", word(1)),
    "utilization.encoder": ("nvmlDeviceGetEncoderUtilization", word()),
    "utilization.decoder": ("nvmlDeviceGetDecoderUtilization", word()),
    "utilization.jpeg": ("nvmlDeviceGetJpgUtilization", word()),
    "utilization.ofa": ("nvmlDeviceGetOfaUtilization", word()),
    "temperature.gpu": ("nvmlDeviceGetTemperature", word()),
    "temperature.memory": ("field:82", word(1)),
    "power.draw.instant": ("field:186", watts),
    "power.draw.average": ("field:185", watts),
    "enforced.power.limit": ("nvmlDeviceGetEnforcedPowerLimit", watts),
    "power.min_limit": ("field:187", watts),
    "power.max_limit": ("field:188", watts),
    "power.default_limit": ("field:189", watts),
    "power.limit": ("field:192", watts),
    "clocks.gr": ("nvmlDeviceGetClockInfo:0", word()),
    "clocks.sm": ("nvmlDeviceGetClockInfo:1", word()),
    "clocks.mem": ("nvmlDeviceGetClockInfo:2", word()),
    "clocks.video": ("nvmlDeviceGetClockInfo:3", word()),
    "clocks.max.gr": ("nvmlDeviceGetMaxClockInfo:0", word()),
    "clocks.max.sm": ("nvmlDeviceGetMaxClockInfo:1", word()),
    "clocks.max.mem": ("nvmlDeviceGetMaxClockInfo:2", word()),
    "pstate": ("nvmlDeviceGetPerformanceState", lambda words: f"P{words[0]}"),
    "pcie.link.gen.gpucurrent": ("nvmlDeviceGetCurrPcieLinkGeneration", word()),
    "pcie.link.gen.max": ("nvmlDeviceGetMaxPcieLinkGeneration", word()),
    "pcie.link.width.current": ("nvmlDeviceGetCurrPcieLinkWidth", word()),
    "pcie.link.width.max": ("nvmlDeviceGetMaxPcieLinkWidth", word()),
    "ecc.errors.corrected.volatile.total": (f"{ECC}:0:0", word()),
    "ecc.errors.uncorrected.volatile.total": (f"{ECC}:1:0", word()),
    "ecc.errors.corrected.aggregate.total": (f"{ECC}:0:1", word()),
    "ecc.errors.uncorrected.aggregate.total": (f"{ECC}:1:1", word()),
    "remapped_rows.correctable": (REMAPPED, word(0)),
    "remapped_rows.uncorrectable": (REMAPPED, word(1)),
    "remapped_rows.pending": (REMAPPED, lambda words: ("No", "Yes")[int(words[2])]),
    "remapped_rows.failure": (REMAPPED, lambda words: ("No", "Yes")[int(words[3])]),
    **{f"remapped_rows.histogram.{left}": ("nvmlDeviceGetRowRemapperHistogram", word(place)) for place, left in enumerate(BANKS)},
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": (
        "nvmlDeviceGetSramEccErrorStatus",
        lambda words: ("No", "Yes")[int(words[0])],
    ),
    "temperature.gpu.tlimit": ("nvmlDeviceGetMarginTemperature", word()),
    "gpu_recovery_action": ("field:230", lambda words: "None" if words[1] == "0" else f"Action {words[1]}"),
    "fabric.state": ("nvmlDeviceGetGpuFabricInfoV", lambda words: FABRIC[int(words[0])]),
    **{f"clocks_event_reasons_counters.{name}": (f"field:{field}", microseconds) for name, field in COUNTERS.items()},
    "persistence_mode": ("nvmlDeviceGetPersistenceMode", switch),
    "mig.mode.current": ("nvmlDeviceGetMigMode", switch),
    **{f"clocks_event_reasons.{name}": ("nvmlDeviceGetCurrentClocksEventReasons", reason(bit)) for name, bit in REASONS.items()},
    "retired_pages.pending": ("nvmlDeviceGetRetiredPagesPendingStatus", lambda words: ("No", "Yes")[int(words[0])]),
    "retired_pages.single_bit_ecc.count": ("nvmlDeviceGetRetiredPages:0", word()),
    "retired_pages.double_bit.count": ("nvmlDeviceGetRetiredPages:1", word()),
    "fan.speed": ("nvmlDeviceGetFanSpeed_v2:0", word()),
}  # fmt: skip


def main() -> int:
    """Answer the command line; the exit status is that of nvidia-smi."""
    lines = [line.split(" ", 2) for line in Path(os.environ["FAKE_NVML_SCENARIO"]).read_text().splitlines()]
    scenario = {(scope, key): (rest or [""])[0].split() for scope, key, *rest in lines}
    (query,) = [one for one in sys.argv[1:] if one.startswith("--query")]
    kind, _, columns = query.partition("=")
    if kind == "--query-compute-apps":
        words = scenario.get(("*", "nvmlDeviceGetComputeRunningProcesses_v3"), [])
        for pid, used in zip(words[::2], words[1::2], strict=True):
            print(f"{pid}, {round(int(used) / MIB)}")  # noqa: T201
        return 0
    for column in columns.split(","):
        if column != "index" and column not in COLUMNS:
            print(f'Field "{column}" is not a valid field to query.\n')  # noqa: T201
            return 2
    for index in range(int(scenario["system", "nvmlDeviceGetCount_v2"][0])):
        print(", ".join(cell(scenario, str(index), column) for column in columns.split(",")))  # noqa: T201
    return 0


def cell(scenario: dict[tuple[str, str], list[str]], index: str, column: str) -> str:
    if column == "index":
        return index
    key, format_words = COLUMNS[column]
    names = (key, key.rpartition(":")[0])
    lines = [scenario[scope, name] for name in names for scope in (index, "system", "*") if (scope, name) in scenario]
    return format_words(lines[0]) if lines and lines[0] and lines[0][0] != "status" else "[N/A]"


if __name__ == "__main__":
    sys.exit(main())
