"""Read the metrics.csv of Lightning's CSVLogger, with the hyperparameters next to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trackside_daemon.bridges.foreign_run import ForeignRun, ForeignRunError, id_of, newest
from trackside_daemon.bridges.yaml_file import read_yaml
from trackside_daemon.history.files.csv_format import read_csv
from trackside_daemon.history.files.items import Clock, FormatError, Push
from trackside_daemon.linux.foreign_file import open_foreign

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HPARAMS_BYTES = 256 * 1024


class CsvRun(ForeignRun):
    """A run of the CSVLogger. Its rows have no time, so each is dated a second after the one before.

    Args:
        path: The file.
        name: Name of the run.
    """

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(id_of("csv", path), name, str(path), "Lightning")
        self._path = path

    def modified(self) -> float:
        """See `ForeignRun`."""
        return newest([self._path])

    def read(self, *, final: bool = True) -> Iterator[Push]:
        """See `ForeignRun`."""
        self.config = self._hyperparameters()
        with open_foreign(self._path) as file:
            clock = Clock(os.fstat(file.fileno()).st_mtime)
            try:
                for item in read_csv(file, self.place, clock, self.left_out, final=final):
                    if isinstance(item, Push):
                        values = dict(zip(item.keys, item.values, strict=True))
                        if (push := self.push(item.attempt, item.step, item.time / 1e6, values)) is not None:
                            yield push
            except FormatError as error:
                if final:  # else its first line may not be complete
                    raise ForeignRunError(str(error)) from None

    def _hyperparameters(self) -> dict[str, object]:
        """Return the hyperparameters; none, and count it, if they cannot be read."""
        path = self._path.with_name("hparams.yaml")
        try:
            return read_yaml(path, HPARAMS_BYTES) if os.path.lexists(path) else {}
        except ForeignRunError as error:
            self.left_out.add("unreadable file(s) of hyperparameters", str(error))
            return {}
