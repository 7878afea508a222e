"""Read the event files of one run, which may lie in several directories: a writer for training, one for validation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.bridges.foreign_run import ForeignRun, newest
from trackside_daemon.bridges.tensorboard.event_file import WRITER, EventFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trackside_daemon.bridges.tensorboard.event_file import Events
    from trackside_daemon.history.files.items import EventItem, Push

MAX_FILES = 1000  # event files of a run that are open


class Folder(NamedTuple):
    """A directory with event files.

    Attributes:
        prefix: Beginning of its keys.
        path: Its path.
    """

    prefix: str
    path: Path


class _File:
    """An event file of a run, and the attempt that its values belong to."""

    def __init__(self, folder: Folder, path: Path) -> None:
        self.folder = folder
        self.events = EventFile(path)
        self.attempt: int | None = None


class EventDirectory(ForeignRun):
    """A run of TensorBoard.

    The values of each file are an attempt of their own if the steps of a tag begin again in it, and the values after the
    restart of a writer, too.

    Args:
        id: See `ForeignRun`.
        name: See `ForeignRun`.
        folders: Its directories.
        file: Only this file of the first one; None for all.

    Attributes:
        folders: Its directories.
    """

    live = True

    def __init__(self, id: str, name: str, folders: Sequence[Folder], file: Path | None = None) -> None:  # noqa: A002
        super().__init__(id, name, str(file or folders[0].path), "TensorBoard")
        self.folders = folders
        self._only = file
        self._files: dict[Path, _File] = {}
        self._highest: dict[str, int] = {}
        self._attempts: dict[Folder, int] = {}

    def read(self) -> Iterator[Push | EventItem]:
        """See `ForeignRun`."""
        for folder in self.folders:
            paths = event_files(folder.path) if self._only is None else [self._only]
            for path in sorted(paths):
                if path not in self._files and len(self._files) < MAX_FILES:
                    self._files[path] = _File(folder, path)
        for file in self._files.values():
            for events in file.events.read():
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

    def notes(self) -> list[str]:
        """See `ForeignRun`."""
        lines = super().notes()
        for path, file in self._files.items():
            lines += [f"{path.name}: {count} records {why} were skipped" for why, count in file.events.skipped.items()]
            if rest := file.events.rest:
                why = file.events.problem or "the last record is incomplete"
                lines.append(f"{path.name}: {why}; {rest:,} bytes were skipped")
        return lines

    def _items(self, file: _File, events: Events) -> Iterator[Push | EventItem]:
        prefix, highest = file.folder.prefix, self._highest
        for tag, step, time, value in events.scalars:
            key = prefix + tag
            reached = highest.get(key)
            if file.attempt is None:
                file.attempt = self._attempt(file.folder, again=reached is not None and step <= reached)
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
                self.leave_out(other.kind, prefix + other.tag)
        if events.restart is not None and any(step >= events.restart for step in highest.values()):
            file.attempt = self._attempt(file.folder, again=True)

    def _attempt(self, folder: Folder, *, again: bool) -> int:
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
