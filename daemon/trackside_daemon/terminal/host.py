"""Line of the host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.terminal.formatting import percent, short_number, text_field, to_float, with_prefix
from trackside_daemon.terminal.styled_lines import Line, Piece, fit, join

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NEARLY_FULL = 0.95  # used fraction of memory or of a disk at which it is marked with a colour and `!`


def render_host(overview: Mapping[str, Any], width: int) -> Line:
    """Return the host's name, its load and the time; values that are not measured are left out."""
    host = overview.get("host") or {}
    now = to_float(overview.get("time"))
    clock = "" if now is None else time.strftime("%H:%M:%S", time.localtime(now))
    line = join([(text_field(host, "name", "trackside"), "title"), *_load(host)])
    return [*fit(line, max(0, width - len(clock) - 1)), (" ", ""), (clock, "dim")]


def _load(host: Mapping[str, Any]) -> Iterator[Piece]:
    if to_float(host.get("cpu_ratio")) is not None:
        cpus = f" of {short_number(host['cpus'])}" if to_float(host.get("cpus")) else ""
        yield f"cpu {percent(host['cpu_ratio'])}{cpus}", ""
    memory = to_float(host.get("memory_bytes"))
    available = to_float(host.get("memory_available_bytes"))
    if memory and available is not None:
        text = f"mem {with_prefix(memory - available, 1024)}/{with_prefix(memory, 1024)}"
        yield _usage(text, (memory - available) / memory)
    if swap := to_float(host.get("swap_used_bytes")):
        yield f"swap {with_prefix(swap, 1024)}", ""
    yield from _disks(host)
    down = to_float(host.get("receive_bytes_per_second"))
    up = to_float(host.get("transmit_bytes_per_second"))
    if down is not None and up is not None:
        yield f"net in {with_prefix(down)}B/s out {with_prefix(up)}B/s", ""


def _disks(host: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the usage of the two fullest disks."""
    values = host.get("disks")
    usages = []
    for disk in [disk for disk in values if isinstance(disk, dict)] if isinstance(values, list) else ():
        size = to_float(disk.get("size_bytes"))
        free = to_float(disk.get("avail_bytes"))
        if size and free is not None:
            usages.append((1 - free / size, text_field(disk, "mountpoint")))
    for used, mountpoint in sorted(usages, reverse=True)[:2]:
        yield _usage(f"{mountpoint} {percent(used)}", used)


def _usage(text: str, used: float) -> Piece:
    return (f"{text}!", "warning") if used >= NEARLY_FULL else (text, "")
