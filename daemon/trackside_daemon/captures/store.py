"""The files of captures: one directory each, within quotas."""

from __future__ import annotations

import gzip
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from trackside_daemon.model.capture import FINAL, CaptureFile
from trackside_daemon.model.text import byte_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.captures.kinds.kind import CaptureKind
    from trackside_daemon.model.capture import Capture

MIB = 1 << 20
FILES = "captures"  # the directory of all captures, in that of the history


class NoRoomError(Exception):
    """The disk has no room for a capture; the message names the directory and what it needs."""


class CaptureStore:
    """The directories of captures, each named by its id; runs may have any name, so none appears in a path.

    Args:
        directory: The directory of the history.
        quota_run: Maximum size of one run's files in bytes; *quota* likewise of all. Without them there is no limit.
        min_free: Bytes of the disk that stay free beside a capture.
    """

    def __init__(
        self, directory: Path, quota_run: int = sys.maxsize, quota: int = sys.maxsize, min_free: int = 0
    ) -> None:
        self._min_free = min_free
        self._root = directory / FILES
        self._quota_run = quota_run
        self._quota = quota

    def make(self, id_: str, kind: CaptureKind) -> Path:
        """Make the directory of a capture of this kind, and return it.

        Raises:
            NoRoomError: The disk has no room for it.
            OSError: It cannot be made.
        """
        self._root.mkdir(mode=0o700, exist_ok=True)
        free = shutil.disk_usage(self._root).free
        needed = kind.least_bytes + self._min_free
        if free < needed:
            raise NoRoomError(
                f"{self._root} has {byte_size(free)} of free room, and a capture of kind {kind.name} needs "
                f"{byte_size(needed)} with storage.min-free; free some, or set storage.path to another disk"
            )
        path = self._root / id_
        path.mkdir(mode=0o700)
        return path

    def path(self, capture: Capture, name: str) -> Path | None:
        """Return the path of a file that the capture has; None if it has none of that *name*."""
        path = self._root / capture.id / name
        return path if any(file.name == name for file in capture.files) and path.is_file() else None

    def pack(self, kind: CaptureKind, paths: Mapping[int, Path]) -> tuple[CaptureFile, ...]:
        """Compress the files of ranks that are not yet, and return them.

        Raises:
            OSError: The disk is full, or a file cannot be read.
        """
        files = []
        for rank, path in sorted(paths.items()):
            packed = _packed(path)
            files.append(CaptureFile(rank, packed.name, packed.stat().st_size, kind.contents or kind.name))
        return tuple(files)

    def remove(self, id_: str) -> None:
        """Delete the files of a capture."""
        shutil.rmtree(self._root / id_, ignore_errors=True)

    def keep(self, ids: Iterable[str]) -> None:
        """Delete the files of all other captures, such as those of deleted runs."""
        kept = set(ids)
        with suppress(OSError):
            for path in self._root.iterdir():
                if path.name not in kept:
                    shutil.rmtree(path, ignore_errors=True)

    def surplus(self, captures: Sequence[Capture]) -> list[Capture]:
        """Return the captures whose files have to go for the quotas: automatic ones first, then the oldest."""
        chosen: list[Capture] = []
        sizes = {capture.id: sum(file.bytes for file in capture.files) for capture in captures}
        of_runs: dict[str, int] = {}
        for capture in captures:
            of_runs[capture.run] = of_runs.get(capture.run, 0) + sizes[capture.id]
        total = sum(sizes.values())
        for capture in sorted(captures, key=lambda one: (one.trigger != "alert", one.asked)):
            over = total > self._quota or of_runs[capture.run] > self._quota_run
            if over and sizes[capture.id] and capture.state in FINAL:
                chosen.append(capture)
                total -= sizes[capture.id]
                of_runs[capture.run] -= sizes[capture.id]
        return chosen


def _packed(path: Path) -> Path:
    """Return the compressed file in place of *path*, readable by this user alone."""
    if path.suffix != ".gz":
        target = path.with_name(f"{path.name}.gz")
        with path.open("rb") as plain, gzip.open(target, "wb", 6) as packed:
            shutil.copyfileobj(plain, packed)
        path.unlink()
        path = target
    path.chmod(0o600)
    return path
