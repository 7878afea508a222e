"""The directories in which checkpoints are looked for, and what has changed in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.checkpoints.audit.files import SUFFIXES
from trackside_daemon.model.checkpoint import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trackside_daemon.checkpoints.audit.request import Entry
    from trackside_daemon.checkpoints.runs_here import RunHere


class Place(NamedTuple):
    """A directory of checkpoints.

    Attributes:
        run: The id of the run that writes them.
        shapes: The shapes of names that count; None for all.
    """

    run: str
    shapes: set[str] | None


class Directories:
    """The entries of the directories at their last scan.

    Args:
        configured: Directories of the settings; ``{run}`` is a run's name.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self._configured = configured
        self._entries: dict[str, dict[str, Entry]] = {}
        self.free: dict[str, int] = {}

    def places(self, tracked: Iterable[tuple[str, str]], alive: Mapping[str, RunHere]) -> dict[str, Place]:
        """Return the directories to scan: of the checkpoints, given by run and path, and those of the settings."""
        places: dict[str, Place] = {}
        for run, text in tracked:
            path = Path(text)
            shapes = places.setdefault(str(path.parent), Place(run, set())).shapes
            if shapes is not None:
                shapes.add(shape_of(path.name))
        for directory in self._configured:
            for id_, one in alive.items():
                if ("{run}" in directory and one.name not in {".", ".."}) or len(alive) == 1:
                    places[directory.replace("{run}", one.name.replace("/", "_"))] = Place(id_, None)
        return places

    def update(self, directory: str, entries: Iterable[Entry], place: Place, started: float) -> Iterator[str]:
        """Apply a scan, and yield the paths of the checkpoints that are new or have changed.

        At the first scan these are the ones that are newer than the attempt, which began at *started*.
        """
        before = self._entries.get(directory)
        self._entries[directory] = {entry.name: entry for entry in entries}
        for name, entry in self._entries[directory].items():
            if before is None and entry.modified / 1e9 < started:
                continue
            fits = place.shapes is None or shape_of(name) in place.shapes
            fits = fits and (entry.folder or Path(name).suffix in SUFFIXES)
            if fits and (before is None or before.get(name) != entry):
                yield str(Path(directory) / name)

    def has(self, path: str) -> bool:
        """Return whether a path was there at the last scan."""
        return Path(path).name in self._entries.get(str(Path(path).parent), {})
