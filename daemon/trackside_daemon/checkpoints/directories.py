"""Directories and open files of a run that are scanned for checkpoints, and the times of the scans."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.checkpoints.file_names import final_name
from trackside_daemon.checkpoints.audit.files import SUFFIXES
from trackside_daemon.model.checkpoint import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trackside_daemon.checkpoints.audit.request import Entry
    from trackside_daemon.checkpoints.runs_here import RunHere

BACK_OFF_SECONDS = 60.0  # wait after the first scan that fails; twice as long after each further one
LONGEST_BACK_OFF_SECONDS = 3600.0
EVERY_SHAPE = ""  # of the names in a configured directory


def written_files(pid: int, proc: Path = Path("/proc")) -> Iterator[Path]:
    """Yield the files of checkpoints that a process writes now, by the names that they will have."""
    folder = f"{proc}/{pid}"
    with suppress(OSError):
        for number in os.listdir(f"{folder}/fd"):  # noqa: PTH208  names are enough
            with suppress(OSError, ValueError, StopIteration):
                # Without a `Path` of each, since most are sockets and devices, and each process is read once a second.
                target = os.readlink(f"{folder}/fd/{number}")  # noqa: PTH115
                if not target.startswith("/"):
                    continue
                file = final_name(Path(target.removesuffix(" (deleted)")))
                if file.suffix in SUFFIXES and _writes(Path(folder, "fdinfo", number)):
                    yield file


def _writes(info: Path) -> bool:
    flags = next(line for line in info.read_text().splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


class Scans:
    """The next scan of each run, in monotonic seconds. A run whose scans fail waits longer each time.

    Attributes:
        current: The id of the run that is scanned now, or was last.
    """

    def __init__(self) -> None:
        self.current = ""
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def keep(self, runs: Iterable[str]) -> None:
        """Scan these runs and no others; a new one is due at once."""
        self._due = {run: self._due.get(run, 0.0) for run in runs}
        self._failures = {run: count for run, count in self._failures.items() if run in self._due}

    def next(self, now: float) -> str | None:
        """Return the run that has been due for longest; None if none is due."""
        run = min(self._due, key=self._due.__getitem__, default=None)
        return run if run is not None and self._due[run] <= now else None

    def begin(self, run: str, due: float) -> None:
        """Note that a run is scanned now, and when the next scan of it is due."""
        self.current, self._due[run] = run, due

    def hurry(self, run: str) -> None:
        """Scan a run as soon as possible, unless its last scan failed."""
        if run not in self._failures:
            self._due[run] = 0.0

    def succeed(self) -> None:
        """Note that the current scan has ended well."""
        self._failures.pop(self.current, None)

    def fail(self, now: float) -> None:
        """Note that the current scan has failed."""
        count = self._failures[self.current] = self._failures.get(self.current, 0) + 1
        self._due[self.current] = now + min(BACK_OFF_SECONDS * 2 ** min(count - 1, 16), LONGEST_BACK_OFF_SECONDS)


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
