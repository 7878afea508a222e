"""The history's file, for commands that run while no daemon does.

What only one command needs is imported where it is used: the start of Python is most of what a command takes.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from trackside.os_errors import os_error_text
from trackside_daemon.cli.sources.source import ANSWER_SECONDS, CHUNK_BYTES, NotFoundError, SourceError
from trackside_daemon.history import directory as place
from trackside_daemon.history.read.offline import Offline
from trackside_daemon.history.read.reader import UnknownKeyError, UnknownRunError
from trackside_daemon.questions.question import InvalidError, Live, MissingError, parse, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside_daemon.history.files.importing import ImportResult
    from trackside_daemon.history.files.items import Item
    from trackside_daemon.history.record.store import RecordStore
    from trackside_daemon.history.record.writer import Writer
    from trackside_daemon.linux.file_lock import FileLock
    from trackside_daemon.questions.question import Question
    from trackside_daemon.questions.series import Export, Exported
    from trackside_daemon.service.config import Config


class FileSource:
    """The `Source` of a file that no daemon is writing.

    Args:
        directory: The directory that the user named; None for the default one.
        warn: Receives a line about each part that is missing.
    """

    def __init__(self, directory: Path | None, warn: Callable[[str], None]) -> None:
        self.live = False
        self._directory = directory
        self._warn = warn
        self._opened: Offline | None = None
        self._writer: Writer | None = None
        self._live = Live(
            prices=lambda: _config().cost, straggler_ratio=lambda: _config().alerts.thresholds.straggler_ratio
        )

    def ask(self, question: Question) -> dict[str, Any]:
        """See `Source`."""
        with _refusals():
            checked = parse(type(question), *request(question))  # as a daemon gets it
            return checked.complete(checked.answer(self._file(), self._live), self._live)

    def capture_file(self, id_: str, name: str) -> Iterator[bytes]:
        """See `Source`."""
        from trackside_daemon.captures.store import CaptureStore
        from trackside_daemon.questions.artifacts import find_capture

        with _refusals():
            capture = find_capture(self._file(), self._live, id_)
        path = CaptureStore(self._file().path.parent).path(capture, name)
        if path is None:
            raise SourceError(f"capture {id_} has no file {name!r} in {self._file().path.parent}")
        try:
            with path.open("rb") as file:
                yield from iter(partial(file.read, CHUNK_BYTES), b"")
        except OSError as error:
            raise SourceError(f"{path}: {os_error_text(error)}") from None

    def dismiss(self, number: int, *, dismissed: bool, comment: str) -> dict[str, Any]:
        """See `Source`."""
        from trackside_daemon.history.record.alert_rows import dismissal
        from trackside_daemon.questions.alerts import Alert

        asked = Alert(number=number)
        note = dismissal(self.ask(asked), time.time() if dismissed else None, comment)
        with self._writing() as writer:
            writer.put([note])
            writer.call(lambda _: None).result(ANSWER_SECONDS)
        return self.ask(asked)

    def answer_agent(self, message: bytes, *, actions: bool) -> dict[str, Any]:
        """See `Source`."""
        import asyncio

        from trackside_daemon import __version__
        from trackside_daemon.agents.answers import Answers
        from trackside_daemon.agents.protocol import Protocol

        async def ask(question: Question) -> dict[str, Any]:
            return question.complete(question.answer(self._file(), self._live), self._live)

        return asyncio.run(Protocol(Answers(ask), __version__).answer(message, actions=actions)) or {}

    def export(self, wanted: Export) -> Exported:
        """See `Source`."""
        with _refusals():
            return wanted.open(self._file())

    def pin(self, uid: str, *, pinned: bool) -> None:
        """See `Source`."""
        from trackside_daemon.history.record import run_changes

        self._change(lambda store: run_changes.pin(store, uid, pinned=pinned))

    def delete(self, uid: str) -> None:
        """See `Source`."""
        from trackside_daemon.history.record import run_changes

        self._change(lambda store: run_changes.delete(store, uid))

    def import_file(self, file: Path, name: str, uid: str) -> ImportResult:
        """See `Source`."""
        from trackside_daemon.history.files.importing import import_run
        from trackside_daemon.history.files.run_file import open_run_file

        with file.open("rb") as stream:
            begin = os.fstat(stream.fileno()).st_mtime if file.is_file() else time.time()
            reading = open_run_file(stream, str(file), id=uid, name=name, begin=begin)
            with self._writing() as writer:
                return import_run(writer, reading)

    def import_run(self, items: Iterator[Item], file: str, name: str, uid: str) -> ImportResult:
        """See `Source`."""
        from trackside_daemon.history.files.importing import import_run
        from trackside_daemon.history.files.run_file import RunFile

        reading = RunFile(items, file, id=uid, name=name)
        with self._writing() as writer:
            return import_run(writer, reading)

    @contextmanager
    def changes(self) -> Iterator[None]:
        """See `Source`."""
        with self._writing() as writer:
            self._writer = writer
            try:
                yield
            finally:
                self._writer = None

    def _file(self) -> Offline:
        if self._opened is None:
            directory = self._directory or place.default_directory(os.environ, os.getuid())
            self._opened = Offline(directory, self._warn)
        return self._opened

    def _change(self, work: Callable[[RecordStore], Any]) -> None:
        with self._writing() as writer:
            writer.call(work).result(ANSWER_SECONDS)

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        """Yield a writer for this process alone; it packs what it has written before it ends."""
        if self._writer is not None:
            yield self._writer
            return
        from trackside_daemon.history.database import Database
        from trackside_daemon.history.record.trimming import Bounds
        from trackside_daemon.history.record.writer import Writer

        directory = place.prepare(self._directory)
        lock = _lock(directory)
        if self._opened is not None:  # on a network file system a writer shares the file with nobody
            self._opened.close()
            self._opened = None
        try:
            remote = bool(place.network_file_system(directory))
            database = Database(directory, exclusive=remote or not lock.supported)
            try:
                writer = Writer(database, Bounds(0))
                writer.start()
                try:
                    yield writer
                    while writer.call(lambda store: len(store.due)).result(ANSWER_SECONDS):
                        time.sleep(0.01)
                finally:
                    writer.stop()
            finally:
                database.close()
        finally:
            lock.close()


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise errors of questions as a daemon's answer does."""
    try:
        yield
    except (MissingError, UnknownKeyError, UnknownRunError) as error:
        raise NotFoundError(str(error)) from None
    except InvalidError as error:
        raise SourceError(str(error)) from None


def _config() -> Config:
    from trackside_daemon.config.loading import load
    from trackside_daemon.service.config import Config

    return load(Config)


def _lock(directory: Path) -> FileLock:
    try:
        return place.lock_history(directory)
    except place.HistoryError as error:
        holder = re.search(r"\(pid [^)]*\)", str(error))
        if holder is None:
            raise
        raise SourceError(
            f"{directory}: a daemon or a command {holder[0]} writes this history, and no daemon answers; wait for its end, "
            "or give the daemon's address with --url=URL"
        ) from None
