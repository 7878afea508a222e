"""A run that another tool has recorded, as the items that an import writes; and its small YAML files, which may be hostile."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path, PurePath
from typing import Any

from trackside.os_errors import os_error_text
from trackside.packing import writable
from trackside_daemon.history.files.items import Item, Push, RunEntry, microseconds
from trackside_daemon.history.files.left_out import LeftOut
from trackside_daemon.linux.foreign_file import open_foreign

MAX_RUNS = 10_000  # runs of a database or a server
MAX_KEYS = 100_000  # keys of a run; a file may have any number
NO_TIME = "value(s) without a valid time and step"
MAX_TEXTS = 1000  # texts of a run that are kept as events


class ForeignRunError(Exception):
    """A run or a place cannot be read; the message is one line that names it."""


class ForeignRun(ABC):
    """One run.

    Args:
        id: Id of the run, the same at each import from the same place.
        name: Name that people see.
        place: File, directory or address that it comes from.
        tool: Name of the tool.

    Attributes:
        id: See above.
        name: See above; a reader may set it from what it reads.
        place: See above.
        live: Whether `read` can go on where it ended; if not, each call yields everything.
        config: Configuration; complete at the end.
        tags: Words to find the run by.
        ended: The tool has recorded the end of the run.
        state: State of the last attempt.
        cause: Cause of its end.
        about: Further facts about it, as the history has them: ``host``, ``command``, …
        left_out: What is not imported.
        paths: Its files; none of a server's run.
    """

    live = False
    paths: Sequence[Path] = ()

    def __init__(self, id: str, name: str, place: str, tool: str) -> None:  # noqa: A002  the field's word
        self.id = writable(id)
        self.name = writable(name)
        self.place = writable(place)
        self.config: dict[str, Any] = {}
        self.tags: Sequence[str] = ()
        self.ended = False
        self.state = "finished"
        self.cause = f"imported from {tool}"
        self.about: dict[str, Any] = {}
        self._spans: dict[int, tuple[float, float]] = {}
        self.left_out = LeftOut()
        self._keys: set[str] = set()
        self._texts = 0

    @abstractmethod
    def read(self, *, final: bool = True) -> Iterator[Push | RunEntry]:
        """Yield what is new since the last call; everything if the run is not `live`.

        Args:
            final: Whether its files are complete. If not, a last record that is not is waited for, and else left out.

        Raises:
            ForeignRunError: The run cannot be read.
            OSError: The same.
        """

    def modified(self) -> float:
        """Return when the run was last written, in Unix seconds; now if that is unknown."""
        return newest(self.paths) if self.paths else time.time()

    def extend(self, other: ForeignRun) -> None:
        """Read files that were found later, too: those of *other*, which is the same run."""
        del other

    def close(self) -> None:
        """Close the files."""
        return

    def items(self) -> Iterator[Item]:
        """Yield the whole run, and its header last, since some tools write the configuration and the end there.

        Raises:
            ForeignRunError: The run cannot be read.
            OSError: The same.
        """
        found = False
        if not self.live:  # it is read from its beginning
            self.left_out.clear()
        for item in self.read():
            found = found or isinstance(item, Push)
            yield item
        if not found:
            raise ForeignRunError(f"{self.place}: it has no scalars" + "".join(f"; {note}" for note in self.notes()))
        yield self._header()

    def notes(self) -> list[str]:
        """Return sentences about what was left out."""
        return self.left_out.notes()

    def push(self, attempt: int, step: int, at: float, values: Mapping[str, float]) -> Push | None:
        """Return a push; None, and count it, if it has no valid time or step, or if there are too many keys."""
        try:
            moment = microseconds(at)
        except ValueError:
            moment = None
        if moment is None or not -(2**63) <= step < 2**63:
            self.left_out.add(NO_TIME, next(iter(values), ""), len(values))
            return None
        if not values.keys() <= self._keys:
            values = {writable(key): value for key, value in values.items()}
            if not self._register(values):
                return None
        first, last = self._spans.get(attempt, (inf, -inf))
        if not first <= at <= last:
            self._spans[attempt] = min(first, at), max(last, at)
        return Push(attempt, 0, step, moment, tuple(values), tuple(values.values()))

    def text(self, attempt: int, at: float, step: int, name: str, content: str) -> RunEntry | None:
        """Return the event of a text; None, and count it, if there are too many."""
        self._texts += 1
        if self._texts > MAX_TEXTS or not content or not abs(at) < 1e10:
            self.left_out.add("text(s)", name)
            return None
        step = max(-(2**63), min(2**63 - 1, step))
        fields = {"name": name, "text": content}
        return RunEntry(
            "event", {"attempt": attempt, "rank": 0, "step": step, "time": at, "kind": "text", "fields": fields}
        )

    def _register(self, values: Mapping[str, float]) -> bool:
        if len(self._keys) + len(values) > MAX_KEYS:
            self.left_out.add(f"value(s) of more than {MAX_KEYS:,} keys", "", len(values))
            return False
        self._keys.update(values)
        return True

    def _header(self) -> RunEntry:
        last = max(self._spans)
        attempts = [
            {
                "attempt": number,
                "state": self.state if number == last else "stopped",
                "cause": self.cause,
                "started": started,
                "ended": ended,
                "config": self.config or None,
                **self.about,
            }
            for number, (started, ended) in sorted(self._spans.items())
        ]
        return RunEntry("run", {"id": "", "name": "", "attempt_list": attempts, "tags": list(self.tags)})


def id_of(tool: str, path: Path) -> str:
    """Return the id of a run that has none of its own: it follows from its place."""
    return hashlib.sha256(f"{tool}\0{path.resolve()}\0".encode("utf-8", "surrogatepass")).hexdigest()[:12]


def name_of(path: PurePath, root: PurePath) -> str:
    """Return a directory's path below another one as a name; its own name if it is the same."""
    relative = path.relative_to(root) if path.is_relative_to(root) else PurePath(path.name)
    return str(relative) if relative.parts else path.name or str(path)


def newest(paths: Iterable[Path]) -> float:
    """Return when the newest of some files was written, in Unix seconds; 0 if there is none."""
    times = []
    for path in paths:
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)


def read_yaml(path: Path, most: int) -> dict[str, Any]:
    """Return the mapping in the first *most* bytes of a file; empty if it has another value.

    Raises:
        ForeignRunError: It cannot be read, needs classes of Python, or has aliases.
    """
    import yaml

    try:
        with open_foreign(path) as file:
            text = file.read(most).decode("utf-8", "replace")
        # A few aliases of aliases can stand for more than fits into memory.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ForeignRunError(f"{path}: has aliases")
        values = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ForeignRunError(f"{path}: cannot be read: {_line(error)}") from None
    return values if isinstance(values, dict) else {}


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return os_error_text(error)
    return next(iter(str(error).splitlines()), type(error).__name__)
