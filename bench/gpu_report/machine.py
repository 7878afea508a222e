"""The machine: GPU, driver, PyTorch, Python, and the findings of ``trackside doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys

import torch

from bench.gpu_report import nvidia_smi
from bench.gpu_report.result import Figure, Result, Table

COLUMNS = (
    *("index", "name", "driver_version", "vbios_version", "memory.total", "power.limit", "pstate", "persistence_mode"),
    *("mig.mode.current", "compute_mode", "accounting.mode", "ecc.mode.current", "utilization.gpu", "memory.used"),
)


def measure(result: Result, *, rehearse: bool) -> None:
    """Describe the machine; a GPU that PyTorch cannot use misses a limit."""
    count = torch.cuda.device_count()
    result.figures.append(Figure("GPUs that PyTorch can use", str(count), ">= 1", None if rehearse else count > 0))
    rows = [
        ["PyTorch", f"{torch.__version__}, CUDA {torch.version.cuda}"],
        ["Python", f"{platform.python_version()}, {sys.executable}"],
        ["system", f"{platform.platform()}, {len(os.sched_getaffinity(0))} cores, user {os.getuid()}"],
        ["compiler", shutil.which("cc") or "none"],
        ["variables", ", ".join(f"{name}={os.environ[name]}" for name in _variables()) or "none"],
    ]
    rows += [[f"cuda:{index}", _properties(index)] for index in range(count)]
    try:
        for gpu in nvidia_smi.query(COLUMNS).rows:
            rows.append(["nvidia-smi", ", ".join(f"{name}: {text}" for name, text in gpu.items())])
    except nvidia_smi.NoNvidiaSmiError as error:
        rows.append(["nvidia-smi", str(error)])
    result.tables.append(Table(["machine", ""], rows))
    result.tables.append(Table(["`trackside doctor`"], [[line] for line in _doctor()]))


def _variables() -> list[str]:
    return [
        name for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") if name in os.environ
    ]


def _properties(index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    return f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB, {properties.multi_processor_count} SMs"


def _doctor() -> list[str]:
    command = [sys.executable, "-m", "trackside_daemon", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    return [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
