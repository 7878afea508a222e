"""Read every file of an archive back, and name those that are wrong."""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from trackside_daemon.bridges.parquet import layout
from trackside_daemon.bridges.parquet.layout import schemas
from trackside_daemon.bridges.parquet.store import MISSING, SUFFIX, FileError, FileStore
from trackside_daemon.history.files.jsonl import folder


class _Part(NamedTuple):
    """Findings at a place: its host and sessions, the rows by kind of its files, and a line for each that is wrong."""

    host: str | None
    sessions: frozenset[bytes]
    rows: dict[str, int]
    wrong: list[str]


class Verification:
    """A reading of all files.

    Args:
        store: Their store.

    Attributes:
        runs: The number of runs, once all faults were yielded.
        files: The number of files that could be read.
        samples: The number of samples in them.
        wrong: The number of faults.
    """

    def __init__(self, store: FileStore) -> None:
        self.runs = self.files = self.samples = self.wrong = 0
        self._store = store

    def faults(self) -> Iterator[str]:
        """Yield a line for each file that is damaged, missing, of a run that is there twice, or left over.

        Raises:
            LookupError: There are no runs.
            SendError: The store does not answer.
        """
        for line in self._faults():
            self.wrong += 1
            yield line

    def _faults(self) -> Iterator[str]:
        places = {kind: {layout.place_of(one.name) for one in self._store.files_below(kind)} for kind in schemas()}
        if not any(places.values()):
            raise LookupError(f"{self._store.path}: no archived runs")
        stems: dict[str, dict[str, _Part]] = {}
        for place in sorted(places["runs"]):
            part = self._part(place)
            if part.wrong:  # a second look: it may have been written or deleted at this moment
                part = self._part(place)
                if not self._is_there(place):
                    continue
            stems.setdefault(layout.split(place).run, {})[place] = part
            self.files += len(part.rows)
            self.samples += part.rows.get("samples", 0)
            yield from part.wrong
        self.runs = len(stems)
        for parts in stems.values():
            yield from self._twice(parts)
        for kind in ("samples", "alerts"):
            for place in sorted(places[kind] - places["runs"]):
                if not self._is_there(place):
                    yield f"{self._path(kind, place)} is left over: its run has no row in runs"
        for name in self._store.abandoned():
            yield f"{self._store.path}/{name} is left over of a process that was killed"

    def _twice(self, parts: dict[str, _Part]) -> Iterator[str]:
        for (first, one), (second, other) in combinations(parts.items(), 2):
            is_known = one.sessions and other.sessions
            is_same = one.sessions & other.sessions if is_known else one.host == other.host
            if is_same and self._is_there(first) and self._is_there(second):
                yield f"{self._path('runs', second)} is of a run that is there twice; the other is {first}"

    def _is_there(self, place: str) -> bool:
        try:
            self._store.read_back(f"runs/{place}{SUFFIX}", deep=False)
        except FileError as error:
            return str(error) != MISSING
        return True

    def _part(self, place: str) -> _Part:
        """Read the files at a place."""
        rows: dict[str, int] = {}
        wrong: list[str] = []
        footer: dict[bytes, bytes] = {}
        host, uid = None, ""
        try:
            with self._store.open(f"runs/{place}{SUFFIX}") as file:
                footer = file.metadata.metadata or {}
                found = file.read(columns=["run", "host"])
            rows["runs"] = len(found)
            (uid,), (host,) = (found[name].to_pylist() for name in ("run", "host"))
            if folder(uid) != layout.split(place).run:
                wrong.append(f"{self._path('runs', place)} has the row of run {uid}")
        except (FileError, ValueError) as error:
            reason = error if isinstance(error, FileError) else f"has {rows['runs']} rows instead of one"
            wrong.append(f"{self._path('runs', place)} {reason}")
        for kind in ("samples", "alerts"):
            expected = int(footer.get(layout.ROWS[kind], -1))
            reason = ""
            try:
                count = rows[kind] = self._count(kind, place, uid)
                if expected not in {count, -1}:
                    reason = f"has {count:,} rows, and its row in runs says {expected:,}"
            except FileError as error:
                reason = str(error)
            if reason and (kind == "samples" or expected >= 0 or reason != MISSING):
                wrong.append(f"{self._path(kind, place)} {reason}")
        return _Part(host, layout.sessions(footer), rows, wrong)

    def _count(self, kind: str, place: str, uid: str) -> int:
        """Read a file, and return the number of its rows.

        Raises:
            FileError: It cannot be read, or has rows of another run.
        """
        with self._store.open(f"{kind}/{place}{SUFFIX}") as file:
            for group in range(file.num_row_groups):
                others = set(file.read_row_group(group)["run"].unique().to_pylist()) - {uid}
                if uid and others:
                    raise FileError(f"has rows of run {min(others)}")
            return int(file.metadata.num_rows)

    def _path(self, kind: str, place: str) -> str:
        return f"{self._store.path}/{kind}/{place}{SUFFIX}"
