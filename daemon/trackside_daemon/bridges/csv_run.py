"""Read the metrics.csv of Lightning's CSVLogger, with the hyperparameters next to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.bridges.foreign_run import ForeignRun, ForeignRunError, id_of, newest
from trackside_daemon.bridges.yaml_file import read_yaml
from trackside_daemon.history.files.csv_format import read_csv
from trackside_daemon.history.files.items import Clock, FormatError, Push

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

    def read(self) -> Iterator[Push]:
        """See `ForeignRun`."""
        self.config = _hyperparameters(self._path.with_name("hparams.yaml"))
        status = self._path.stat()
        with self._path.open("rb") as file:
            try:
                for item in read_csv(file, str(self._path), Clock(status.st_mtime)):
                    if isinstance(item, Push):
                        values = dict(zip(item.keys, item.values, strict=True))
                        if (push := self.push(0, item.step, item.time / 1e6, values)) is not None:
                            yield push
            except FormatError as error:
                raise ForeignRunError(str(error)) from None


def _hyperparameters(path: Path) -> dict[str, object]:
    """Return the hyperparameters; none if they cannot be read."""
    try:
        return read_yaml(path, HPARAMS_BYTES)
    except ForeignRunError:
        return {}
