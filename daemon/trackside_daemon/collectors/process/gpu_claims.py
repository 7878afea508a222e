"""What a training process says of its GPUs, understood: UUIDs, cut ones, those of MIG devices, and indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.nvml.reading import GpuReading


def by_uuid(claim: str, gpus: Sequence[GpuReading]) -> GpuReading | None:
    """The one GPU whose UUID begins so, or that of a MIG device of it; None when several do.

    ``GPU-8932f937``, ``MIG-5c3a…`` and, from drivers before 470, ``MIG-GPU-8932f937…/1/0`` for a device of that GPU.
    What comes before the number means nothing: PyTorch has none, and a MIG device's is then told as a GPU's.
    """
    start = _bare(claim)
    found = [gpu for gpu in gpus if any(_bare(uuid).startswith(start) for uuid in (gpu.uuid, *_mig_uuids(gpu)))]
    return found[0] if start and len(found) == 1 else None


def by_index(claim: str, gpus: Sequence[GpuReading]) -> GpuReading | None:
    """The GPU that CUDA counts so; None when it cannot be told.

    CUDA begins with the fastest, which changes nothing where all are alike. With ``PCI-`` before it the number is
    nvidia-smi's. Where a GPU is divided by MIG, CUDA counts other devices.
    """
    number = claim.removeprefix("PCI-")
    if not number.isdecimal() or any(_mig_uuids(gpu) for gpu in gpus):
        return None
    names = {gpu.info["name"] for gpu in gpus if gpu.info.get("name")}  # one that was lost from the start has none
    if number == claim and len(names) > 1:
        return None
    return next((gpu for gpu in gpus if gpu.index == int(number)), None)


def is_divided(gpu: GpuReading) -> bool:
    """Whether it has MIG devices."""
    return bool(_mig_uuids(gpu))


def _mig_uuids(gpu: GpuReading) -> list[str]:
    return [labels[0] for family, labels, _ in gpu.values if family == "mig_info"]


def _bare(uuid: str) -> str:
    return uuid.removeprefix("MIG-").removeprefix("GPU-").partition("/")[0].lower()
