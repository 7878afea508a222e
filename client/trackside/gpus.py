"""Which GPUs this process was given, and which it uses, by the names that CUDA has for them."""

from __future__ import annotations

import sys
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def given(environ: Mapping[str, str], local_rank: int) -> tuple[str, ...]:
    """The entries of CUDA_VISIBLE_DEVICES as they stand; of several the one that the local rank takes by custom.

    CUDA reads up to the first entry that is neither a number nor a UUID, and sees no GPU at all when one comes twice.
    Its numbers begin with the fastest GPU; where they follow the bus, as nvidia-smi's do, ``3`` is told as ``PCI-3``.
    """
    order = "PCI-" if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else ""
    entries = (entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    read = tuple(takewhile(lambda entry: entry.isdecimal() or entry.startswith(("GPU-", "MIG-")), entries))
    if len(set(read)) < len(read):
        return ()
    return tuple(f"{order}{one}" if one.isdecimal() else one for one in read[local_rank : local_rank + 1] or read)


def in_use() -> tuple[str, ...]:
    """The UUIDs of the GPUs on which PyTorch has memory in this process; empty where nothing tells.

    Nothing is initialised or waited for: PyTorch counts its memory on the host, and keeps the properties there. It is
    right in any thread, as the current device is not.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return ()
        used = (index for index in range(cuda.device_count()) if cuda.memory_reserved(index))
        return tuple(f"GPU-{cuda.get_device_properties(index).uuid}" for index in used)
    except Exception:  # noqa: BLE001  it may be half imported, too old to tell, or have failed, and training must go on
        return ()
