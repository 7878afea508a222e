"""Identity of a GPU, through the real pynvml."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest
from nvml.answers import Refused

from trackside_daemon.nvml.worker.driver import Driver

NOT_SUPPORTED, GPU_IS_LOST = 3, 15


def info() -> dict[str, str]:
    return Driver(pynvml).read().gpus[0].info


def test_a_gpu_reports_its_identity(library: Any) -> None:
    library.values |= {
        "nvmlDeviceGetSerial": b"1654922006536",
        "nvmlDeviceGetVbiosVersion": b"96.00.99.00.01",
        "nvmlDeviceGetArchitecture": 9,
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetMinorNumber": 3,
        "nvmlDeviceGetNumaNodeId": 1,
    }
    assert info() == {
        "name": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": "00000000:01:00.0",
        "serial": "1654922006536",
        "vbios_version": "96.00.99.00.01",
        "architecture": "hopper",
        "compute_capability": "9.0",
        "minor": "3",
        "numa_node": "1",
        "source": "nvml",
    }


@pytest.mark.parametrize(
    ("function", "answer", "label"),
    [
        ("nvmlDeviceGetSerial", b"N/A", "serial"),
        ("nvmlDeviceGetSerial", b"[N/A]", "serial"),
        ("nvmlDeviceGetSerial", Refused(NOT_SUPPORTED), "serial"),
        ("nvmlDeviceGetArchitecture", 0xFFFFFFFF, "architecture"),
        ("nvmlDeviceGetCudaComputeCapability", Refused(NOT_SUPPORTED), "compute_capability"),
        ("nvmlDeviceGetMinorNumber", 0xFFFFFFFF, "minor"),
        ("nvmlDeviceGetNumaNodeId", -1, "numa_node"),
    ],
)
def test_unknown_labels_are_empty(library: Any, function: str, answer: Any, label: str) -> None:
    library.values[function] = answer
    assert info()[label] == ""


def test_a_gpu_that_is_lost_before_its_uuid_was_read_is_down(library: Any) -> None:
    library.values["nvmlDeviceGetSerial"] = Refused(GPU_IS_LOST)
    assert Driver(pynvml).read().gpus[0].values == [("up", (), 0.0)]
