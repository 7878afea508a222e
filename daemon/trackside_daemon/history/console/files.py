"""Segments of a command's output as files; the oldest are deleted."""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

DIRECTORY = "console"  # of all output, in that of the history
KEPT_BYTES = 10 * 1024 * 1024  # of a command's output, the newest
SEGMENT_BYTES = 2 * 1024 * 1024
OF_ALL_BYTES = 1024 * 1024 * 1024  # of all commands; the oldest files are deleted

_LAUNCH = re.compile(r"[0-9a-f]{16}", re.ASCII)
_SEGMENT = re.compile(r"([0-9a-f]{16})\.([0-9]{6})\.log", re.ASCII)


class ConsoleWriter:
    """Appends the output of one command to its files.

    Args:
        history: The directory of the history.
        launch: The id of the launch.
        segment_bytes: The size of a file.
        kept_bytes: The bytes that are kept, the newest.

    Raises:
        OSError: The directory cannot be made or written.
    """

    def __init__(
        self, history: Path, launch: str, *, segment_bytes: int = SEGMENT_BYTES, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._directory = history / DIRECTORY
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._launch = launch
        self._segment_bytes = segment_bytes
        self._segments = kept_bytes // segment_bytes
        before = segments(history, launch)  # of an earlier start of a command that starts again
        self._number = int(before[-1].name.split(".")[-2]) + 1 if before else 0
        self._size = 0
        self._file = self._open()
        _limit(self._directory)

    def write(self, data: bytes) -> None:
        """Append bytes; begin another segment if this one is full.

        Raises:
            OSError: The disk is full.
        """
        self._file.write(data)
        self._file.flush()
        self._size += len(data)
        if self._size >= self._segment_bytes:
            self._file.close()
            self._number += 1
            self._file = self._open()
            self._size = 0
            for path in segments(self._directory.parent, self._launch)[: -self._segments - 1]:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> IO[bytes]:
        path = self._directory / f"{self._launch}.{self._number:06d}.log"
        # Not through a link that somebody put there.
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")


def segments(history: Path, launch: str) -> list[Path]:
    """Return the files of a launch, the oldest first."""
    if not _LAUNCH.fullmatch(launch):
        return []
    return sorted((history / DIRECTORY).glob(f"{launch}.*.log"))


def read(history: Path, launch: str, most: int = KEPT_BYTES) -> bytes:
    """Return the kept output of a launch, the newest *most* bytes; empty for none."""
    parts = []
    for path in segments(history, launch):
        with suppress(OSError):
            parts.append(path.read_bytes())
    return b"".join(parts)[-most:]


def sweep(history: Path, launches: Collection[str], before: float) -> None:
    """Delete the output of other launches that was written before a Unix time, such as that of deleted runs."""
    with suppress(OSError):
        for path, launch, status in _files(history / DIRECTORY):
            if launch not in launches and status.st_mtime < before:
                path.unlink(missing_ok=True)


def _limit(directory: Path) -> None:
    """Delete the oldest files beyond the limit of all."""
    with suppress(OSError):
        files = sorted(_files(directory), key=lambda item: -item[2].st_mtime)
        size = 0
        for path, _, status in files:
            size += status.st_size
            if size > OF_ALL_BYTES:
                path.unlink(missing_ok=True)


def _files(directory: Path) -> Iterator[tuple[Path, str, os.stat_result]]:
    for path in directory.iterdir():
        if match := _SEGMENT.fullmatch(path.name):
            yield path, match[1], path.stat()
