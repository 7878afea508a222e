"""The directories that are searched for checkpoints, and what has changed in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.checkpoints.audit.files import SUFFIXES
from trackside_daemon.model.checkpoint import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trackside_daemon.checkpoints.audit.request import Entry
    from trackside_daemon.checkpoints.runs_here import RunHere

EVERY_SHAPE = ""  # of the names in a configured directory


class Directories:
    """The directories of each run, and their entries at the last scan.

    Args:
        configured: Directories of the settings; ``{run}`` is a run's name.

    Attributes:
        free: The free bytes in directories, by run and directory.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self._configured = configured
        self._entries: dict[tuple[str, str], dict[str, Entry]] = {}
        # The run that writes the names of a shape, by directory, user and shape.
        self._writers: dict[tuple[str, int | None, str], str] = {}
        self.free: dict[tuple[str, str], int] = {}

    def places(self, tracked: Iterable[tuple[str, str]], runs: Mapping[str, RunHere]) -> dict[str, set[str]]:
        """Return the directories to scan, by run: of its checkpoints, given by run and path, and those of the settings."""
        shapes: dict[str, dict[str, set[str]]] = {run: {} for run in runs}
        for run, text in tracked:
            path = Path(text)
            shapes[run].setdefault(str(path.parent), set()).add(shape_of(path.name))
        alive = [id_ for id_, one in runs.items() if one.ended is None]
        for directory in self._configured:
            for id_ in alive:
                name = runs[id_].name
                if ("{run}" in directory and name not in {".", ".."}) or len(alive) == 1:
                    shapes[id_][directory.replace("{run}", name.replace("/", "_"))] = {EVERY_SHAPE}
        self._writers = {}
        for run in sorted(runs, key=lambda id_: runs[id_].ended is not None):  # one that is alive, else the first
            for directory, names in shapes[run].items():
                for shape in names:
                    self._writers.setdefault((directory, runs[run].uid, shape), run)
        self._entries = {key: entries for key, entries in self._entries.items() if key[0] in runs}
        self.free = {key: count for key, count in self.free.items() if key[0] in runs}
        return {run: set(directories) for run, directories in shapes.items() if directories}

    def update(self, directory: str, entries: Iterable[Entry], run: str, here: RunHere) -> Iterator[str]:
        """Apply a scan for a run, and yield the paths of its checkpoints that are new or have changed.

        At the first scan these are the ones that are newer than the attempt. Names like those of another run of the user
        are the other one's, and so are all names in a directory that is configured for it.
        """
        before = self._entries.get((run, directory))
        found = self._entries[run, directory] = {entry.name: entry for entry in entries}
        for name, entry in found.items():
            if before is None and entry.modified / 1e9 < here.started:
                continue
            writer = self._writers.get((directory, here.uid, EVERY_SHAPE)) or self._writers.get(
                (directory, here.uid, shape_of(name))
            )
            fits = writer == run and (entry.folder or Path(name).suffix in SUFFIXES)
            if fits and (before is None or before.get(name) != entry):
                yield str(Path(directory) / name)

    def has(self, run: str, path: str) -> bool:
        """Return whether a path was there at the last scan for a run."""
        return Path(path).name in self._entries.get((run, str(Path(path).parent)), {})
