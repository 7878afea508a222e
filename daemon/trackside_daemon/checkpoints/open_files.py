"""Find the files of checkpoints that a process has open for writing, by /proc/PID/fd and /proc/PID/fdinfo."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.checkpoints.audit.files import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNFINISHED = (".tmp", ".part", ".partial", ".new", ".incomplete")  # what writers append until they rename
# Names of the parts of a checkpoint that is a folder.
_PART = re.compile(
    r"(model|pytorch_model|adapter|optim|scheduler|sched|rng|random|scaler|sampler|training_args|mp_rank|zero_|state|"
    r"custom_checkpoint|rank|shard|__\d+_\d+|consolidated)",
    re.IGNORECASE,
)


def written_files(pid: int, proc: Path = Path("/proc")) -> Iterator[Path]:
    """Yield the files of checkpoints that a process writes now, by the names that they will have."""
    folder = proc / str(pid)
    with suppress(OSError):
        for number in os.listdir(folder / "fd"):  # noqa: PTH208  names are enough
            with suppress(OSError, ValueError, StopIteration):
                path = (folder / "fd" / number).readlink()
                name = path.name.removesuffix(" (deleted)")
                name = next((name.removesuffix(end) for end in _UNFINISHED if name.endswith(end)), name)
                if path.is_absolute() and Path(name).suffix in SUFFIXES and _writes(folder / "fdinfo" / number):
                    yield path.with_name(name)


def _writes(info: Path) -> bool:
    flags = next(line for line in info.read_text().splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def checkpoint_of(file: Path) -> Path | None:
    """Return the checkpoint that a file belongs to: its folder if it is named like a part of one, else the file.

    None for a file in a hidden folder, which its writer will rename.
    """
    if any(part.startswith(".") for part in file.parts[1:-1]) or file.name.startswith("."):
        return None
    folder = file.parent
    numbered = next((place for place in (folder, folder.parent) if re.search(r"\d", place.name)), None)
    if file.suffix == ".distcp":
        return numbered or folder
    return numbered if numbered is not None and _PART.match(file.name) else file
