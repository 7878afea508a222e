"""Readings of a real GPU, compared with those of nvidia-smi."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from processes import Daemon

from bench.gpu_report import nvidia_smi, parity
from bench.gpu_report.result import Result
from trackside_daemon.nvml.handle.handle import Nvml
from trackside_daemon.nvml.reading import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = 60.0


@pytest.fixture
def nvml(gpu: None) -> Iterator[Nvml]:
    """The real driver, with all optional readings."""
    handle = Nvml(WorkerSettings(extra=("all",)))
    yield handle
    handle.close()


@pytest.fixture
def daemon(gpu: None, place: Path) -> Iterator[Daemon]:
    """A daemon with all optional readings."""
    daemon = Daemon(place, "--collector.gpu.extra=all", fresh=True)
    yield daemon
    daemon.stop()


def test_each_value_equals_nvidia_smi_s(daemon: Daemon) -> None:
    parity.wait_for_gpus(daemon)
    compared = parity.settled(lambda: daemon.get("/metrics").text, Result())
    assert {key: one for key, one in compared.items() if one.agrees is False} == {}
    assert sum(one.agrees is True for one in compared.values()) >= parity.FEWEST


def test_this_process_is_seen_with_its_memory(nvml: Nvml) -> None:
    held = torch.ones(64 * 1024 * 1024, device="cuda")
    torch.cuda.synchronize()
    families = [value for gpu in nvml.read(LONG).gpus for value in gpu.values]
    memory = [value for family, _, value in families if family == "process_memory_bytes"]
    # In some containers NVML lists no process, and nvidia-smi neither.
    assert max(memory, default=0.0) > held.numel() * 4 or not nvidia_smi.process_memory()
