"""Files that only ever grow by whole lines, are rotated by their size, and closed when too many are open."""

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


class Files:
    """Files of whole lines below a directory.

    Args:
        directory: Where they are; it is there.
        rotate_bytes: No file gets larger, unless by a single line.
        limit: So many are kept open, those used last.
    """

    def __init__(self, directory: Path, rotate_bytes: int, limit: int) -> None:
        self._directory = directory
        self._rotate_bytes = rotate_bytes
        self._limit = limit
        self._open: OrderedDict[str, int] = OrderedDict()

    def append(self, name: str, lines: Sequence[bytes]) -> None:
        """Append whole lines to a file, called by its folder and kind.

        Raises:
            OSError: It cannot be done; of the lines that were to go into the last file, none is there.
        """
        size = self._size(name)
        chunk: list[bytes] = []
        for line in lines:
            if size and size + len(line) > self._rotate_bytes:
                self._write(name, chunk)
                self._rotate(name)
                size, chunk = self._size(name), []
            chunk.append(line)
            size += len(line)
        self._write(name, chunk)

    def close(self) -> None:
        """Close all. A later `append` opens its file again."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _path(self, name: str, number: int = 0) -> Path:
        return self._directory / (f"{name}.{number}.jsonl" if number else f"{name}.jsonl")

    def _size(self, name: str) -> int:
        """The file's size in bytes, opened if it is not, or is no longer where it was."""
        file = self._open.get(name)
        if file is not None:
            status = os.fstat(file)
            if status.st_nlink:
                self._open.move_to_end(name)
                return status.st_size
            self._forget(name)  # somebody deleted it
        while len(self._open) >= self._limit:
            os.close(self._open.popitem(last=False)[1])
        self._open[name] = file = self._opened(self._path(name))
        return os.fstat(file).st_size

    @staticmethod
    def _opened(path: Path) -> int:
        make_private(path.parent)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":  # torn by a crash: what comes next begins on a new line
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
            error.filename = str(self._path(name))  # a write's error has none
            raise

    def _undo(self, name: str, size: int) -> None:
        with suppress(OSError):  # then the line is torn, and who opens the file next ends it
            os.ftruncate(self._open[name], size)
        self._forget(name)

    def _rotate(self, name: str) -> None:
        self._forget(name)
        path = self._path(name)
        numbered = re.compile(rf"{re.escape(path.stem)}\.(\d{{1,18}})\.jsonl", re.ASCII)
        taken = (numbered.fullmatch(entry.name) for entry in path.parent.iterdir())
        path.rename(self._path(name, 1 + max((int(match[1]) for match in taken if match), default=0)))

    def _forget(self, name: str) -> None:
        os.close(self._open.pop(name))
