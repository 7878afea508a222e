"""Read a run of MLflow's file store: a directory with meta.yaml and a file for each metric, parameter and tag."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trackside_daemon.bridges.foreign_run import MAX_KEYS, newest
from trackside_daemon.bridges.mlflow.tracked_run import STATUSES, TrackedRun, chunks
from trackside_daemon.bridges.yaml_file import read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.history.files.merging import Chunk

META = "meta.yaml"
META_BYTES = 64 * 1024
TEXT_BYTES = 16 * 1024  # longest parameter or tag that is read
LINE_BYTES = 4096


class FileStoreRun(TrackedRun):
    """A run in a file store.

    Args:
        directory: Its directory.

    Raises:
        ForeignRunError: It has no valid meta.yaml.
    """

    def __init__(self, directory: Path) -> None:
        fields = read_yaml(directory / META, META_BYTES)
        status = fields.get("status", "")
        if isinstance(status, int):
            status = STATUSES[status] if 0 <= status < len(STATUSES) else ""
        id_ = fields.get("run_id") or fields.get("run_uuid")
        super().__init__(str(id_ or directory.name), str(directory), {**fields, "status": status})
        self._directory = directory

    def modified(self) -> float:
        """See `ForeignRun`."""
        return newest([self._directory / META, *(self._directory / "metrics" / key for key in self._metrics())])

    def _described(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        params, tags = (
            [(key, _text(self._directory / folder / key)) for key in _files(self._directory / folder)]
            for folder in ("params", "tags")
        )
        return params, tags

    def _metrics(self) -> list[str]:
        return _files(self._directory / "metrics")

    def _samples(self, key: str) -> Iterator[Chunk]:
        return chunks(self._lines(key))

    def _lines(self, key: str) -> Iterator[tuple[int, int, float]]:
        with (self._directory / "metrics" / key).open("rb") as file:
            while line := file.readline(LINE_BYTES):
                try:
                    milliseconds, value, step, *_ = [*line.split(), b"0"]
                    yield int(step), int(milliseconds), float(value)
                except ValueError:
                    self.leave_out("damaged lines", key)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(TEXT_BYTES).decode("utf-8", "replace").strip()


def _files(directory: Path) -> list[str]:
    """Return the files below a directory, whose names are keys that may have slashes; no links."""
    found: list[str] = []
    for folder, folders, names in os.walk(directory):
        folders.sort()
        relative = os.path.relpath(folder, directory)
        found += [name if relative == "." else f"{relative}/{name}" for name in sorted(names)]
        if len(found) > MAX_KEYS:
            break
    return [key for key in found[:MAX_KEYS] if (directory / key).is_file() and not (directory / key).is_symlink()]
