"""Match what a training process reports of its GPUs: full and abbreviated UUIDs, those of MIG devices, and indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.nvml.reading import GpuReading


def by_uuid(claim: str, gpus: Sequence[GpuReading]) -> GpuReading | None:
    """Return the only GPU whose UUID, or whose MIG device's UUID, begins with *claim*; None without or with several.

    Accepted forms: ``GPU-8932f937``, ``MIG-5c3a…`` and, from drivers before 470, ``MIG-GPU-8932f937…/1/0``.
    """
    # The prefix before the number is ignored: PyTorch has none, so clients report a MIG device's UUID as a GPU's.
    start = _bare(claim)
    matching = [gpu for gpu in gpus if any(_bare(uuid).startswith(start) for uuid in (gpu.uuid, *_mig_uuids(gpu)))]
    return matching[0] if start and len(matching) == 1 else None


def by_index(claim: str, gpus: Sequence[GpuReading]) -> GpuReading | None:
    """Return the GPU with a CUDA index, or with ``PCI-`` an index of nvidia-smi; None when it is ambiguous."""
    # CUDA counts the fastest GPU first, which changes nothing where all are alike. With MIG, CUDA counts other devices.
    number = claim.removeprefix("PCI-")
    if not number.isdecimal() or any(_mig_uuids(gpu) for gpu in gpus):
        return None
    names = {gpu.info["name"] for gpu in gpus if gpu.info.get("name")}  # a GPU lost before the first reading has none
    if number == claim and len(names) > 1:
        return None
    return next((gpu for gpu in gpus if gpu.index == int(number)), None)


def has_mig_devices(gpu: GpuReading) -> bool:
    """Return whether a GPU is divided into MIG devices."""
    return bool(_mig_uuids(gpu))


def _mig_uuids(gpu: GpuReading) -> list[str]:
    return [labels[0] for family, labels, _ in gpu.values if family == "mig_info"]


def _bare(uuid: str) -> str:
    return uuid.removeprefix("MIG-").removeprefix("GPU-").partition("/")[0].lower()
