"""Find the GPUs that this process was given, by the names that CUDA uses."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def visible_gpus(environ: Mapping[str, str], local_rank: int) -> tuple[str, ...]:
    """Return the entries of CUDA_VISIBLE_DEVICES; of several only the one that the local rank uses by convention.

    CUDA reads up to the first entry that is neither a number nor a UUID, and sees no GPU if an entry comes twice. Its
    numbers begin with the fastest GPU. If they follow the bus, as nvidia-smi's do, ``3`` is returned as ``PCI-3``.

    Returns:
        Empty if the variable is not set, and ``none`` if it hides every GPU.
    """
    order = "PCI-" if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else ""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return ()
    entries = (entry.strip() for entry in visible.split(","))
    read = tuple(takewhile(lambda entry: entry.isdecimal() or entry.startswith(("GPU-", "MIG-")), entries))
    if not read or len(set(read)) < len(read):
        return ("none",)
    own = read[local_rank : local_rank + 1] or read
    return tuple(f"{order}{entry}" if entry.isdecimal() else entry for entry in own)


def gpu_name(environ: Mapping[str, str], index: int) -> str:
    """Return the name of a GPU by its *index* in this process, for a PyTorch that has no UUID of it."""
    entries = visible_gpus(environ, index)
    if len(entries) == 1 and entries[0] != "none":
        return entries[0]
    return f"PCI-{index}" if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else str(index)
