"""Which GPUs this process was given, by the names that CUDA has for them."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def given(environ: Mapping[str, str], local_rank: int) -> tuple[str, ...]:
    """The entries of CUDA_VISIBLE_DEVICES as they stand; of several the one that the local rank takes by custom.

    Empty where it is not set, and ``none`` where it hides every GPU.

    CUDA reads up to the first entry that is neither a number nor a UUID, and sees no GPU at all when one comes twice.
    Its numbers begin with the fastest GPU; where they follow the bus, as nvidia-smi's do, ``3`` is told as ``PCI-3``.
    """
    order = "PCI-" if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else ""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return ()
    entries = (entry.strip() for entry in visible.split(","))
    read = tuple(takewhile(lambda entry: entry.isdecimal() or entry.startswith(("GPU-", "MIG-")), entries))
    if not read or len(set(read)) < len(read):
        return ("none",)
    return tuple(f"{order}{one}" if one.isdecimal() else one for one in read[local_rank : local_rank + 1] or read)


def named(environ: Mapping[str, str], index: int) -> str:
    """The name of one that this process sees, by its *index* there, where PyTorch knows no UUID of it."""
    entries = given(environ, index)
    if len(entries) == 1 and entries[0] != "none":
        return entries[0]
    return f"PCI-{index}" if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else str(index)
