"""Readings of a real GPU, compared with those of nvidia-smi."""

from __future__ import annotations

import csv
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch

from trackside_daemon.nvml.handle.handle import Nvml
from trackside_daemon.nvml.reading import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.nvml.reading import GpuReading, Reading

LONG = 60.0


class Parity(NamedTuple):
    """A column of nvidia-smi, the family with the same quantity, and the permitted difference.

    Attributes:
        scale: The ratio of the family's value to the column's.
        near: The permitted difference: the column's rounding, and the change between two readings.
    """

    column: str
    family: str
    labels: tuple[str, ...] = ()
    scale: float = 1.0
    near: float = 0.0


MIB, MHZ, PERCENT = 2.0**20, 1e6, 0.01
COLUMNS = [
    Parity("memory.total", "memory_bytes", scale=MIB, near=MIB),
    Parity("memory.reserved", "memory_reserved_bytes", scale=MIB, near=MIB),
    Parity("memory.used", "memory_used_bytes", scale=MIB, near=64 * MIB),
    Parity("memory.free", "memory_free_bytes", scale=MIB, near=64 * MIB),
    Parity("utilization.gpu", "utilization_ratio", scale=PERCENT, near=1.0),
    Parity("utilization.memory", "memory_controller_utilization_ratio", scale=PERCENT, near=1.0),
    Parity("temperature.gpu", "temperature_celsius", ("gpu",), near=3.0),
    Parity("temperature.memory", "temperature_celsius", ("memory",), near=3.0),
    Parity("power.draw.instant", "power_watts", near=60.0),
    Parity("power.draw.average", "power_average_watts", near=60.0),
    Parity("enforced.power.limit", "power_limit_watts", ("enforced",), near=0.01),
    Parity("power.default_limit", "power_limit_watts", ("default",), near=0.01),
    Parity("power.min_limit", "power_limit_watts", ("min",), near=0.01),
    Parity("power.max_limit", "power_limit_watts", ("max",), near=0.01),
    Parity("clocks.sm", "clock_hertz", ("sm",), scale=MHZ, near=400 * MHZ),
    Parity("clocks.mem", "clock_hertz", ("memory",), scale=MHZ, near=1500 * MHZ),
    Parity("clocks.max.sm", "clock_max_hertz", ("sm",), scale=MHZ),
    Parity("clocks.max.mem", "clock_max_hertz", ("memory",), scale=MHZ),
    Parity("pcie.link.gen.gpumax", "pcie_link_max_generation", near=1.0),
    Parity("pcie.link.width.max", "pcie_link_max_width_lanes"),
    Parity("ecc.errors.corrected.aggregate.total", "ecc_errors_total", ("corrected",)),
    Parity("ecc.errors.uncorrected.aggregate.total", "ecc_errors_total", ("uncorrected",)),
    Parity("ecc.errors.corrected.volatile.total", "ecc_volatile_errors_total", ("corrected",)),
    Parity("ecc.errors.uncorrected.volatile.total", "ecc_volatile_errors_total", ("uncorrected",)),
    Parity("remapped_rows.correctable", "remapped_rows_total", ("correctable",)),
    Parity("remapped_rows.uncorrectable", "remapped_rows_total", ("uncorrectable",)),
]


@pytest.fixture
def nvml(gpu: None) -> Iterator[Nvml]:
    """The real driver, with all optional readings."""
    handle = Nvml(WorkerSettings(extra=("all",)))
    yield handle
    handle.close()


@pytest.fixture
def reading(nvml: Nvml) -> Reading:
    """The second reading, which has the values that need two samples."""
    nvml.read(LONG)
    torch.cuda._sleep(400_000_000)
    return nvml.read(LONG)


def smi(columns: list[str]) -> list[dict[str, str]]:
    """Return a row per GPU, without the columns that nvidia-smi or the GPU does not support."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi here")
    rows: list[dict[str, str]] = []
    for column in columns:
        command = ["nvidia-smi", f"--query-gpu=uuid,{column}", "--format=csv,noheader,nounits"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        for number, row in enumerate(csv.reader(asked.stdout.splitlines()) if asked.returncode == 0 else ()):
            if number == len(rows):
                rows.append({"uuid": row[0]})
            if len(row) == 2 and not row[1].strip().startswith("["):
                rows[number][column] = row[1].strip()
    return rows


def by_series(gpu: GpuReading) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(family, labels): value for family, labels, value in gpu.values}


def test_each_value_is_what_nvidia_smi_says(reading: Reading) -> None:
    gpus = {gpu.uuid: by_series(gpu) for gpu in reading.gpus}
    compared, wrong = 0, []
    for row in smi([one.column for one in COLUMNS]):
        for one in COLUMNS:
            ours = gpus[row["uuid"]].get((one.family, one.labels))
            if (one.column in row) != (ours is not None):
                wrong.append(f"{one.column}: nvidia-smi {row.get(one.column)}, ours {ours}")
            elif ours is not None:
                compared += 1
                theirs = float(row[one.column]) * one.scale
                if abs(ours - theirs) > one.near:
                    wrong.append(f"{one.column}: nvidia-smi {theirs:g}, ours {ours:g}")
    assert not wrong
    assert compared > 10


def test_a_gpu_is_called_what_nvidia_smi_calls_it(reading: Reading) -> None:
    columns = {
        "name": "name",
        "pci.bus_id": "pci_bus_id",
        "vbios_version": "vbios_version",
        "compute_cap": "compute_capability",
    }
    for row in smi(["index", *columns]):
        gpu = next(one for one in reading.gpus if one.uuid == row["uuid"])
        assert str(gpu.index) == row["index"]
        assert {label: gpu.info[label] for column, label in columns.items() if column in row} == {
            label: row[column] for column, label in columns.items() if column in row
        }


def test_this_process_is_seen_with_its_memory(nvml: Nvml) -> None:
    held = torch.ones(64 * 1024 * 1024, device="cuda")
    torch.cuda.synchronize()
    memory = [
        value for gpu in nvml.read(LONG).gpus for family, _, value in gpu.values if family == "process_memory_bytes"
    ]
    assert max(memory) > held.numel() * 4
