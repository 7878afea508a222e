"""Read the event files of one run, which may lie in several directories: a writer for training, one for validation."""

import os
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.bridges.foreign_run import ForeignRun, newest
from trackside_daemon.bridges.tensorboard.event_file import WRITER, EventChunk, EventFile
from trackside_daemon.history.files.items import Push, RunEntry
from trackside_daemon.history.files.left_out import LeftOut

MAX_FILES = 1000  # event files of a run that are open


class EventFolder(NamedTuple):
    """A directory with event files."""

    prefix: str  # beginning of its keys
    path: Path


class _File:
    """An event file of a run, the attempt that its values belong to, and whether more of them are there."""

    def __init__(self, folder: EventFolder, path: Path, left_out: LeftOut) -> None:
        self.folder = folder
        self.events = EventFile(path, left_out)
        self.begins = self.events.begins
        self.attempt: int | None = None
        self.unfinished = False


class _Head(NamedTuple):
    """The first part of a file that is not yielded yet, and what follows it; the number keeps files from being compared."""

    begins: float
    number: int
    file: _File
    events: EventChunk
    rest: Iterator[EventChunk]


class EventDirectory(ForeignRun):
    """A run of TensorBoard.

    The values of its files are read by time. Those of a file are the next attempt if it begins after the end of the files
    before it in its directory, and the steps of its first tag begin again; so are those after the restart of a writer.

    Args:
        id: See `ForeignRun`.
        name: See `ForeignRun`.
        folders: Its directories.
        file: Only this file of the first one; None for all.

    Attributes:
        folders: Its directories.
    """

    live = True

    def __init__(self, id: str, name: str, folders: Sequence[EventFolder], file: Path | None = None) -> None:  # noqa: A002
        super().__init__(id, name, str(file or folders[0].path), "TensorBoard")
        self.folders = folders
        self._only = file
        self._files: dict[Path, _File] = {}
        self._highest: dict[str, int] = {}
        self._attempts: dict[EventFolder, int] = {}

    def read(self, *, final: bool = True) -> Iterator[Push | RunEntry]:
        """See `ForeignRun`."""
        for folder in self.folders:
            paths = event_files(folder.path) if self._only is None else [self._only]
            for path in sorted(paths):
                if path not in self._files and len(self._files) < MAX_FILES:
                    self._files[path] = _File(folder, path, self.left_out)
        for file, events in self._by_time(final=final):
            if file.events.writer != WRITER or self._only is not None:
                yield from self._items(file, events)

    def modified(self) -> float:
        """See `ForeignRun`."""
        return newest([self._only] if self._only else (path for one in self.folders for path in event_files(one.path)))

    def extend(self, other: ForeignRun) -> None:
        """See `ForeignRun`."""
        if isinstance(other, EventDirectory):
            self.folders = other.folders

    def close(self) -> None:
        """See `ForeignRun`."""
        for file in self._files.values():
            file.events.close()
        self._files.clear()

    def _by_time(self, *, final: bool) -> Iterator[tuple[_File, EventChunk]]:
        """Yield what is new in the files, merged by time: of each file, the heap has the first part that is not yielded yet."""
        waiting = sorted(self._files.values(), key=attrgetter("begins"), reverse=True)
        heads: list[_Head] = []

        def load(number: int, file: _File, rest: Iterator[EventChunk]) -> None:
            events = next(rest, None)
            file.unfinished = events is not None
            if events is not None:
                heappush(heads, _Head(events.begins, number, file, events, rest))

        while heads or waiting:
            if waiting and (not heads or waiting[-1].begins <= heads[0].begins):
                file = waiting.pop()
                file.begins = -inf  # from now on, something of it may be new at any time
                load(len(waiting), file, file.events.read(final=final))
                continue
            head = heappop(heads)
            others_begin = min(heads[0].begins if heads else inf, waiting[-1].begins if waiting else inf)
            first, later = head.events.split(others_begin)
            yield head.file, first
            if later is None:
                load(head.number, head.file, head.rest)
            else:
                heappush(heads, head._replace(begins=later.begins, events=later))

    def _items(self, file: _File, events: EventChunk) -> Iterator[Push | RunEntry]:
        prefix, highest = file.folder.prefix, self._highest
        for tag, step, time, value in events.scalars:
            key = prefix + tag
            reached = highest.get(key)
            if file.attempt is None:
                again = reached is not None and step <= reached and not self._goes_on(file.folder)
                file.attempt = self._attempt(file.folder, again=again)
            if (push := self.push(file.attempt, step, time, {key: value})) is not None:
                yield push
            if reached is None or step > reached:
                highest[key] = step
        attempt = file.attempt or 0
        for other, step, time in events.others:
            if other.kind == "text" and isinstance(other.content, str):
                if (item := self.text(attempt, time, step, prefix + other.tag, other.content)) is not None:
                    yield item
            elif other.kind == "hparams":
                self.config.update(other.content)
            else:
                self.left_out.add(other.kind, prefix + other.tag)
        if events.restart is not None and any(step >= events.restart for step in highest.values()):
            file.attempt = self._attempt(file.folder, again=True)

    def _goes_on(self, folder: EventFolder) -> bool:
        """Return whether a file of a directory that has begun has more values: the next one is of another worker."""
        files = self._files.values()
        return any(one.unfinished and one.attempt is not None and one.folder == folder for one in files)

    def _attempt(self, folder: EventFolder, *, again: bool) -> int:
        """Return the present attempt of a directory, or its next one."""
        self._attempts[folder] = self._attempts.get(folder, 0) + again
        return self._attempts[folder]


def event_files(directory: Path) -> list[Path]:
    """Return the event files in a directory; none if it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            return [
                directory / entry.name
                for entry in entries
                if "tfevents" in entry.name and entry.is_file(follow_symlinks=False)
            ]
    except OSError:
        return []
