"""Peak memory of this process, from /proc/self/status, or on other systems from getrusage(2)."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak() -> float:
    """Begin a new peak where the kernel can, and return the present bytes in memory."""
    with suppress(OSError):
        CLEAR.write_text("5")
    return _status("VmRSS")


def peak_bytes() -> float:
    """Return the most bytes that were in memory since `reset_peak`."""
    return _status("VmHWM")


def _status(field: str) -> float:
    try:
        lines = STATUS.read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
