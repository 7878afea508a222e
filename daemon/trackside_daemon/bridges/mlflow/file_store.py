"""Read a run of MLflow's file store: a directory with meta.yaml and a file for each metric, parameter and tag."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from trackside.packing import writable
from trackside_daemon.bridges.foreign_run import MAX_KEYS, newest, read_yaml
from trackside_daemon.bridges.mlflow.tracked_run import STATUSES, TrackedRun
from trackside_daemon.history.files.left_out import DAMAGED_LINE, TORN_LINE
from trackside_daemon.linux.foreign_file import open_foreign

META = "meta.yaml"
META_BYTES = 64 * 1024
TEXT_BYTES = 16 * 1024  # longest parameter or tag that is read
LINE_BYTES = 4096
UNREADABLE = "unreadable file(s)"


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
        params, tags = (list(self._contents(folder)) for folder in ("params", "tags"))
        return params, tags

    def _contents(self, folder: str) -> Iterator[tuple[str, str]]:
        if (self._directory / folder).is_symlink():
            self.left_out.add(UNREADABLE, f"{folder} (a symbolic link)")
        for key in _files(self._directory / folder):
            try:
                with open_foreign(self._directory / folder / key) as file:
                    yield writable(key), file.read(TEXT_BYTES).decode("utf-8", "replace").strip()
            except OSError as error:
                self.left_out.add(UNREADABLE, f"{folder}/{key} ({error.strerror})")

    def _metrics(self) -> list[str]:
        return _files(self._directory / "metrics")

    def _samples(self, key: str, *, final: bool) -> Iterator[tuple[int, int, float]]:
        try:
            with open_foreign(self._directory / "metrics" / key) as file:
                for line in iter(partial(file.readline, LINE_BYTES), b""):
                    # Without its end, the last number may be cut off.
                    if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                        self.left_out.add(TORN_LINE, key, count=final)
                        continue
                    try:
                        milliseconds, value, step, *_ = [*line.split(), b"0"]
                        yield int(step), int(milliseconds), float(value)
                    except ValueError:
                        self.left_out.add(DAMAGED_LINE, key)
        except OSError as error:
            self.left_out.add(UNREADABLE, f"metrics/{key} ({error.strerror})")


def _files(directory: Path) -> list[str]:
    """Return the files below a directory, whose names are keys that may have slashes; none if it is a link."""
    found: list[str] = []
    if directory.is_symlink():
        return found
    for folder, folders, names in os.walk(directory):
        folders.sort()
        relative = os.path.relpath(folder, directory)
        found += [name if relative == "." else f"{relative}/{name}" for name in sorted(names)]
        if len(found) > MAX_KEYS:
            break
    return found[:MAX_KEYS]
