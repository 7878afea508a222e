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
    folder = proc / str(pid)
    with suppress(OSError):
        for number in os.listdir(folder / "fd"):  # noqa: PTH208  names are enough
            with suppress(OSError, ValueError, StopIteration):
                path = (folder / "fd" / number).readlink()
                file = final_name(path.with_name(path.name.removesuffix(" (deleted)")))
                if path.is_absolute() and file.suffix in SUFFIXES and _writes(folder / "fdinfo" / number):
                    yield file


def _writes(info: Path) -> bool:
    flags = next(line for line in info.read_text().splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
