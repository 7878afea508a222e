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

from trackside_daemon.alerts.silences import with_silenced_until
from trackside_daemon.cli.sources.errors import SourceError
from trackside_daemon.cli.sources.source import ANSWER_SECONDS, CHUNK_BYTES, Export
from trackside_daemon.history import directory as place
from trackside_daemon.history.read import alert_reader, layers, reader
from trackside_daemon.history.read.offline import Offline
from trackside_daemon.history.read.summary import SUMMARIES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from trackside_daemon.diagnosis.settings import CostSection
    from trackside_daemon.history.console.lines import Lines
    from trackside_daemon.history.files.export import Format
    from trackside_daemon.history.files.importing import ImportResult
    from trackside_daemon.history.files.items import Item
    from trackside_daemon.history.read.reader import RunFilter
    from trackside_daemon.history.record.store import Store
    from trackside_daemon.history.record.writer import Writer
    from trackside_daemon.linux.file_lock import FileLock


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

    def runs(self, wanted: RunFilter) -> list[dict[str, Any]]:
        """See `Source`."""
        with self._file().reading() as connection:
            return reader.runs(connection, wanted)

    def run(self, text: str, limit: int | None = None) -> dict[str, Any]:
        """See `Source`."""
        from trackside_daemon.diagnosis.accounts import read_run

        with self._file().reading() as connection:
            return read_run(connection, reader.resolve(connection, text), SUMMARIES if limit is None else limit)

    def events(self, uid: str) -> list[dict[str, Any]]:
        """See `Source`."""
        with self._file().reading() as connection:
            return reader.events(connection, uid)

    def alerts(self, uid: str) -> list[dict[str, Any]]:
        """See `Source`."""
        with self._file().reading() as connection:
            return with_silenced_until(
                alert_reader.alerts(connection, alert_reader.AlertFilter(uid)),
                alert_reader.silences(connection, time.time()),
            )

    def diagnosis(self, text: str, baseline: Sequence[str] = (), keys: Sequence[str] = ()) -> dict[str, Any]:
        """See `Source`."""
        from trackside_daemon.diagnosis.diagnosis import diagnose

        with self._file().reading() as connection:
            uid = reader.resolve(connection, text)
            return diagnose(connection, uid, _prices(), baseline=baseline, keys=keys)

    def comparison(self, runs: Sequence[str], baseline: Sequence[str], keys: Collection[str] = ()) -> dict[str, Any]:
        """See `Source`."""
        from trackside_daemon.diagnosis.comparison import read_comparison

        with self._file().reading() as connection:
            return read_comparison(connection, runs, baseline, keys, _prices())

    def checkpoints(self, text: str, metric: str = "") -> dict[str, Any]:
        """See `Source`."""
        from trackside_daemon.checkpoints.overview import overview

        with self._file().reading() as connection:
            return overview(connection, reader.resolve(connection, text), metric)

    def layers(self, text: str) -> dict[str, Any]:
        """See `Source`."""
        with self._file().reading() as connection:
            return layers.newest(connection, reader.resolve(connection, text))

    def console(self, text: str, count: int) -> Lines:
        """See `Source`."""
        from trackside_daemon.history.console import files, lines

        with self._file().reading() as connection:
            launch = reader.launch(connection, reader.resolve(connection, text))
        kept = files.read(self._file().path.parent, launch)
        return lines.select(list(map(lines.plain, lines.split(kept))), count)

    def captures(self, text: str) -> list[dict[str, Any]]:
        """See `Source`."""
        from trackside_daemon.history import capture_rows
        from trackside_daemon.model.capture import as_json

        with self._file().reading() as connection:
            found = capture_rows.captures(connection, reader.resolve(connection, text) if text else "")
            return [{**as_json(capture), "summary": {}} for capture in found]

    def capture_file(self, id_: str, name: str) -> Iterator[bytes]:
        """See `Source`."""
        from trackside_daemon.captures.store import CaptureStore
        from trackside_daemon.history import capture_rows

        with self._file().reading() as connection:
            capture = capture_rows.capture(connection, id_)
        path = None if capture is None else CaptureStore(self._file().path.parent).path(capture, name)
        if path is None:
            raise SourceError(f"capture {id_} has no file {name!r} in {self._file().path.parent}")
        try:
            with path.open("rb") as file:
                yield from iter(partial(file.read, CHUNK_BYTES), b"")
        except OSError as error:
            raise SourceError(f"{path}: {(error.strerror or str(error)).lower()}") from None

    def report(self, text: str, size: int) -> dict[str, Any]:
        """See `Source`."""
        from trackside_daemon.diagnosis.report import read_contents

        with self._file().reading() as connection:
            return read_contents(connection, reader.resolve(connection, text), _prices(), size)

    def alert(self, number: int) -> dict[str, Any]:
        """See `Source`."""
        with self._file().reading() as connection:
            alert = alert_reader.alert(connection, number)
            if alert is None:
                raise SourceError(f"alert {number}: no alert has this id")
            return with_silenced_until([alert], alert_reader.silences(connection, time.time()))[0]

    def dismiss(self, number: int, *, dismissed: bool, comment: str) -> dict[str, Any]:
        """See `Source`."""
        from trackside_daemon.history.record.alert_rows import dismissal

        note = dismissal(self.alert(number), time.time() if dismissed else None, comment)
        with self._writing() as writer:
            writer.put([note])
            writer.call(lambda _: None).result(ANSWER_SECONDS)
        return self.alert(number)

    def answer_agent(self, message: bytes, *, actions: bool) -> dict[str, Any]:
        """See `Source`."""
        import asyncio

        from trackside_daemon import __version__
        from trackside_daemon.agents.answers import Answers
        from trackside_daemon.agents.protocol import Protocol

        async def read(query: Callable[[sqlite3.Connection], Any]) -> Any:
            with self._file().reading() as connection:
                return query(connection)

        return asyncio.run(Protocol(Answers(read, _prices), __version__).answer(message, actions=actions)) or {}

    def export(self, uid: str, form: Format, *, resources: bool = False) -> Export:
        """See `Source`."""
        from trackside_daemon.history.files import export as exports
        from trackside_daemon.history.files.selection import Selection, count

        try:
            selection = Selection(resources=resources)
            return Export(count(self._file(), uid, selection), exports.export(self._file(), uid, form, selection))
        except exports.TooManyKeysError as error:
            raise SourceError(str(error)) from None

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

    def _file(self) -> Offline:
        if self._opened is None:
            directory = self._directory or place.default_directory(os.environ, os.getuid())
            self._opened = Offline(directory, self._warn)
        return self._opened

    def _change(self, work: Callable[[Store], Any]) -> None:
        with self._writing() as writer:
            writer.call(work).result(ANSWER_SECONDS)

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        """Yield a writer for this process alone; it packs what it has written before it ends."""
        from trackside_daemon.history.database import Database
        from trackside_daemon.history.record.trimming import Bounds
        from trackside_daemon.history.record.writer import Writer

        directory = place.prepare(self._directory)
        lock = _lock(directory)
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


def _prices() -> CostSection:
    from trackside_daemon.config.loading import load
    from trackside_daemon.service.config import Config

    return load(Config).cost


def _lock(directory: Path) -> FileLock:
    try:
        return place.lock_history(directory)
    except place.HistoryError as error:
        holder = re.search(r"\(pid [^)]*\)", str(error))
        if holder is None:
            raise
        raise SourceError(
            f"{directory}: a daemon {holder[0]} writes this history, but does not answer; stop it, or give its address "
            "with --url=URL"
        ) from None
