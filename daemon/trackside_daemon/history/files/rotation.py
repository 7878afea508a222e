"""Append lines to many files: they rotate by size, and only some of them are open."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from trackside_daemon.history.directory import make_private

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class RotatingFiles:
    """Files of whole lines in a directory.

    Args:
        directory: An existing directory.
        rotate_bytes: Largest size of a file; a single line may be longer.
        limit: Number of files that stay open, those used last.
    """

    def __init__(self, directory: Path, rotate_bytes: int, limit: int) -> None:
        self._directory = directory
        self._rotate_bytes = rotate_bytes
        self._limit = limit
        self._open: OrderedDict[str, int] = OrderedDict()

    def append(self, name: str, lines: Sequence[bytes]) -> None:
        """Append whole lines to a file, named by folder and kind.

        Raises:
            OSError: A write failed; the last file then has none of the lines that belong into it.
        """
        size = self._size(name)
        chunk: list[bytes] = []
        for line in lines:
            if size and size + len(line) > self._rotate_bytes:
                self._write(name, chunk)
                self._rotate(name)
                size = self._size(name)
                chunk = []
            chunk.append(line)
            size += len(line)
        self._write(name, chunk)

    def close(self) -> None:
        """Close all files; a later `append` opens its file again."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _path(self, name: str, number: int = 0) -> Path:
        return self._directory / (f"{name}.{number}.jsonl" if number else f"{name}.jsonl")

    def _size(self, name: str) -> int:
        """Return the size of a file in bytes; open it if it is closed or was deleted."""
        file = self._open.get(name)
        if file is not None:
            status = os.fstat(file)
            if status.st_nlink:  # none once the file was deleted
                self._open.move_to_end(name)
                return status.st_size
            self._close_file(name)
        while len(self._open) >= self._limit:
            os.close(self._open.popitem(last=False)[1])
        self._open[name] = file = self._open_file(self._path(name))
        return os.fstat(file).st_size

    @staticmethod
    def _open_file(path: Path) -> int:
        make_private(path.parent)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":  # incomplete after a crash: begin a new line
                os.write(file, b"\n")
        except OSError:
            os.close(file)
            raise
        return file

    def _write(self, name: str, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        file = self._open[name]
        before = os.fstat(file).st_size
        rest = memoryview(b"".join(lines))
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError as error:
            self._undo(name, before)
            error.filename = str(self._path(name))  # the error of a write has none
            raise

    def _undo(self, name: str, size: int) -> None:
        with suppress(OSError):  # the line stays incomplete; the next open ends it
            os.ftruncate(self._open[name], size)
        self._close_file(name)

    def _rotate(self, name: str) -> None:
        self._close_file(name)
        path = self._path(name)
        numbered = re.compile(rf"{re.escape(path.stem)}\.(\d{{1,18}})\.jsonl", re.ASCII)
        rotated = (numbered.fullmatch(entry.name) for entry in path.parent.iterdir())
        path.rename(self._path(name, 1 + max((int(match[1]) for match in rotated if match), default=0)))

    def _close_file(self, name: str) -> None:
        os.close(self._open.pop(name))
