"""Read a run that `trackside export` has written, in a directory of them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from trackside_daemon.bridges.foreign_run import ForeignRun, ForeignRunError
from trackside_daemon.history.files.export import COLUMNS
from trackside_daemon.history.files.formats import parse
from trackside_daemon.history.files.items import FormatError, Push
from trackside_daemon.history.files.run_file import open_run_file
from trackside_daemon.linux.foreign_file import open_foreign

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.history.files.items import Item

SUFFIXES = (".csv", ".json", ".jsonl")
_EXPORT = re.compile(rb'\{"kind":"run",|\{"run": \{|"?%b"?,' % b'"?,"?'.join(name.encode() for name in COLUMNS))


class ExportedRun(ForeignRun):
    """A run in a file of one of our formats, with its own header.

    Raises:
        ForeignRunError: It has no run.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with open_foreign(path) as file:
                begun = open_run_file(file, str(path))
        except FormatError as error:
            raise ForeignRunError(str(error)) from None
        super().__init__(begun.run, begun.name, str(path), "trackside")

    def items(self) -> Iterator[Item]:
        """Yield everything that the file has; see `ForeignRun`."""
        with open_foreign(self._path) as file:
            yield from parse(file, self.place, os.fstat(file.fileno()).st_mtime, self.left_out)

    def read(self, *, final: bool = True) -> Iterator[Push]:
        """See `ForeignRun`."""
        del final
        yield from (item for item in self.items() if isinstance(item, Push))


def is_export(path: Path) -> bool:
    """Return whether a file begins as one of `trackside export`.

    Raises:
        OSError: It cannot be read.
    """
    if path.suffix not in SUFFIXES:
        return False
    with open_foreign(path) as file:
        return _EXPORT.match(file.read(100)) is not None
