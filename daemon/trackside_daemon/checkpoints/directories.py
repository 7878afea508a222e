"""Runs with a process on this machine, their directories and open files, and the times of the scans of these."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from trackside.checkpoints.file_names import final_name
from trackside_daemon.checkpoints.audit.files import SUFFIXES
from trackside_daemon.checkpoints.audit.request import Entry
from trackside_daemon.model.backoff import Backoff
from trackside_daemon.model.checkpoint import shape_of
from trackside_daemon.model.records import ENDED, RunState, SessionOpened

MAX_RUNS = 256  # most runs that are followed
KEPT_SECONDS = 86400.0  # how long an ended run is followed
RETURN_SECONDS = 60.0  # time in which the processes of a run come back to a new daemon


class RunHere(NamedTuple):
    """A run."""

    name: str  # its exported name
    attempt: int  # its last attempt
    directory: str  # the working directory of its process, for relative paths
    # The user whose files are read; None for all, since that is the daemon's own. A run of an owner without a user of
    # this machine, as over TCP, is not followed: this daemon would read for it what only the daemon may.
    uid: int | None
    started: float  # when the attempt began, in Unix seconds
    ended: float | None = None  # when it ended, in monotonic seconds; None while it is alive


class RunsHere:
    """The runs with a process on this machine, by id.

    Args:
        boot: The boot id of this machine.
    """

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._runs: dict[str, RunHere] = {}

    def get(self, run: str) -> RunHere | None:
        """Return a run by its id; None if it has no process on this machine."""
        return self._runs.get(run)

    def all(self) -> dict[str, RunHere]:
        """Return the runs by id, in the order in which they were first seen."""
        return dict(self._runs)

    def restore(self, id_: str, name: str, attempt: int, owner: str, now: float) -> None:
        """Follow a run of an earlier daemon, which has ended unless a process of it comes back."""
        if (uid := _uid(owner)) is not None:
            self._runs[id_] = RunHere(name, attempt, "", _other(uid), 0.0, now + RETURN_SECONDS)

    def open(self, record: SessionOpened) -> None:
        """Apply the begin of a session."""
        session, hello = record.session, record.hello
        run = self._runs.get(session.run)
        owner = os.getuid() if record.owner is None else _uid(record.owner.id)
        if hello.identity.boot != self._boot or owner is None or (run is not None and run.attempt > session.attempt):
            return
        directory = "" if hello.about is None else hello.about.directory
        began = run.started if run is not None and run.attempt == session.attempt else record.time
        self._runs[session.run] = RunHere(session.name, session.attempt, directory, _other(owner), began)
        while len(self._runs) > MAX_RUNS:  # of who has most, one that has ended, else the first
            users = Counter(one.uid for one in self._runs.values())
            order = {id_: (users[one.uid], one.ended is not None) for id_, one in self._runs.items()}
            del self._runs[max(order, key=order.__getitem__)]

    def end(self, state: RunState, now: float) -> None:
        """Apply the end of an attempt."""
        run = self._runs.get(state.run)
        if run is not None and state.attempt == run.attempt and state.state in ENDED and run.ended is None:
            self._runs[state.run] = run._replace(ended=now)

    def forget(self, now: float) -> None:
        """Forget the runs that ended long ago."""
        ends = {id_: now if run.ended is None else run.ended for id_, run in self._runs.items()}
        self._runs = {id_: run for id_, run in self._runs.items() if now - ends[id_] < KEPT_SECONDS}

    def is_over(self, id_: str, attempt: int, now: float) -> bool:
        """Return whether no process of an attempt is left."""
        run = self._runs.get(id_)
        return run is None or run.attempt > attempt or (run.ended is not None and now >= run.ended)


def _uid(owner: str) -> int | None:
    """Return the number of the user ``uid:NUMBER``; None of another owner."""
    kind, _, number = owner.partition(":")
    return int(number) if kind == "uid" and number.isdecimal() else None


def _other(uid: int) -> int | None:
    return None if uid == os.getuid() else uid


BACK_OFF_SECONDS = 60.0  # wait after the first scan that fails; twice as long after each further one
LONGEST_BACK_OFF_SECONDS = 3600.0
EVERY_SHAPE = ""  # of the names in a configured directory
MAX_FILES = 16_384  # most open files of a process that are read: it may have a million


def written_files(pid: int, proc: Path = Path("/proc")) -> Iterator[Path]:
    """Yield the files of checkpoints that a process writes now, by the names that they will have."""
    folder = f"{proc}/{pid}"
    with suppress(OSError), os.scandir(f"{folder}/fd") as numbers:
        for number in islice(numbers, MAX_FILES):
            with suppress(OSError, ValueError, StopIteration):
                # Without a `Path` of each, since most are sockets and devices, and each process is read once a second.
                target = os.readlink(number.path)  # noqa: PTH115
                if not target.startswith("/"):
                    continue
                file = final_name(Path(target.removesuffix(" (deleted)")))
                if file.suffix in SUFFIXES and _writes(Path(folder, "fdinfo", number.name)):
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
        self._failures: dict[str, Backoff] = {}

    def keep(self, runs: Iterable[str]) -> None:
        """Scan these runs and no others; a new one is due at once."""
        self._due = {run: self._due.get(run, 0.0) for run in runs}
        self._failures = {run: backoff for run, backoff in self._failures.items() if run in self._due}

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
        backoff = self._failures.setdefault(self.current, Backoff(BACK_OFF_SECONDS, LONGEST_BACK_OFF_SECONDS))
        self._due[self.current] = now + backoff.next_delay()


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
