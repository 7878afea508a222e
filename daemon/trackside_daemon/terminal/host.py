"""The line of the host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.terminal.formatting import brief, large, percent, real, told
from trackside_daemon.terminal.styled_lines import Line, Piece, fitted, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FULL = 0.95
"""Memory or a disk of which so much is used is named in colour, with a ``!``."""


def hosted(overview: Mapping[str, Any], width: int) -> Line:
    """The host's name, and how busy it is; what was not measured is left out."""
    host = overview.get("host") or {}
    now = real(overview.get("time"))
    clock = "" if now is None else time.strftime("%H:%M:%S", time.localtime(now))
    line = joined([(told(host, "name", "trackside"), "title"), *_busy(host)])
    return [*fitted(line, max(0, width - len(clock) - 1)), (" ", ""), (clock, "dim")]


def _busy(host: Mapping[str, Any]) -> Iterator[Piece]:
    if real(host.get("cpu_ratio")) is not None:
        cpus = f" of {brief(host['cpus'])}" if real(host.get("cpus")) else ""
        yield f"cpu {percent(host['cpu_ratio'])}{cpus}", ""
    memory, available = real(host.get("memory_bytes")), real(host.get("memory_available_bytes"))
    if memory and available is not None:
        text = f"mem {large(memory - available, 1024)}/{large(memory, 1024)}"
        yield _warned(text, (memory - available) / memory)
    if swap := real(host.get("swap_used_bytes")):
        yield f"swap {large(swap, 1024)}", ""
    yield from _disks(host)
    down, up = (real(host.get(f"{way}_bytes_per_second")) for way in ("receive", "transmit"))
    if down is not None and up is not None:
        yield f"net in {large(down)}B/s out {large(up)}B/s", ""


def _disks(host: Mapping[str, Any]) -> Iterator[Piece]:
    """How full they are, the fullest first."""
    disks = host.get("disks")
    found = []
    for one in [one for one in disks if isinstance(one, dict)] if isinstance(disks, list) else ():
        size, free = real(one.get("size_bytes")), real(one.get("avail_bytes"))
        if size and free is not None:
            found.append((1 - free / size, told(one, "mountpoint")))
    for used, mountpoint in sorted(found, reverse=True)[:2]:
        yield _warned(f"{mountpoint} {percent(used)}", used)


def _warned(text: str, used: float) -> Piece:
    return (f"{text}!", "warning") if used >= FULL else (text, "")
