"""The names of damaged files that are set aside, and of the new files into which they are salvaged.

The new file exists from before its damaged one is renamed until it becomes the history, so that a daemon that is killed
meanwhile leaves what the next one continues.
"""

import shutil
import time
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.history.directory import create_private
from trackside_daemon.model.text import byte_size

SUFFIXES = ("-wal", "-shm", "")
TARGET, IMAGE = ".salvage", ".image"
SPARE_BYTES = 16 * 1024**2  # of the disk, which salvaging leaves free


class Salvaging(NamedTuple):
    """A damaged file, what to read, and the new file."""

    damaged: Path
    source: Path
    target: Path

    def room(self) -> str:
        """Return why the disk has no room for the new file; empty if it has."""
        files = [self.source, self.source.with_name(f"{self.source.name}-wal")]
        needed = sum(file.stat().st_size for file in files if file.exists()) + SPARE_BYTES
        free = shutil.disk_usage(self.target.parent).free
        return "" if free >= needed else f"that needs {byte_size(needed)}, and {byte_size(free)} are free"

    def end(self) -> None:
        """Delete what only salvaging needed."""
        for file in (self.target, self.damaged.with_name(f"{self.damaged.name}{IMAGE}")):
            file.unlink(missing_ok=True)


def name_aside(path: Path) -> Path:
    """Return a dated name that is free for a damaged file."""
    stamp = time.strftime("%Y-%m-%dT%H%M%S")
    names = (f"{path.name}.damaged-{stamp}{more}" for more in ("", *(f"-{number}" for number in range(2, 1000))))
    return next(path.with_name(name) for name in names if not [*path.parent.glob(f"{name}*")])


def set_aside(path: Path, aside: Path) -> None:
    """Rename a damaged file, its WAL and its shared memory, and create the file into which they will be salvaged.

    Raises:
        OSError: A file cannot be renamed or created.
    """
    create_private(aside.with_name(f"{aside.name}{TARGET}"))
    # The file itself comes last: a new one must never be next to the old WAL, also after a crash in between.
    for suffix in SUFFIXES:
        file = path.with_name(f"{path.name}{suffix}")
        if file.exists():
            file.rename(aside.with_name(f"{aside.name}{suffix}"))


def unfinished(path: Path) -> Salvaging | None:
    """Return what has to be salvaged before *path* can be used; None if nothing has to."""
    found = None
    for target in sorted(path.parent.glob(f"{path.name}.damaged-*{TARGET}")):
        damaged = target.with_name(target.name.removesuffix(TARGET))
        image = target.with_name(f"{damaged.name}{IMAGE}")
        found = Salvaging(damaged, image if image.exists() else damaged, target)
        if path.exists() or not damaged.exists():  # a new history has begun, or the file was never renamed
            found.end()
            found = None
    return found
