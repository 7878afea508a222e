"""Find the files of checkpoints that a process has open for writing, by /proc/PID/fd and /proc/PID/fdinfo."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.checkpoints.file_names import final_name
from trackside_daemon.checkpoints.audit.files import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Iterator


def written_files(pid: int, proc: Path = Path("/proc")) -> Iterator[Path]:
    """Yield the files of checkpoints that a process writes now, by the names that they will have."""
    folder = f"{proc}/{pid}"
    with suppress(OSError):
        for number in os.listdir(f"{folder}/fd"):  # noqa: PTH208  names are enough
            with suppress(OSError, ValueError, StopIteration):
                # Without a `Path` of each, since most are sockets and devices, and each process is read once a second.
                target = os.readlink(f"{folder}/fd/{number}")  # noqa: PTH115
                if not target.startswith("/"):
                    continue
                file = final_name(Path(target.removesuffix(" (deleted)")))
                if file.suffix in SUFFIXES and _writes(Path(folder, "fdinfo", number)):
                    yield file


def _writes(info: Path) -> bool:
    flags = next(line for line in info.read_text().splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
