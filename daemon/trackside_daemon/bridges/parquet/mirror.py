"""Write the files of a run that has ended: its samples, its alerts, and one row with its facts, which comes last."""

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trackside_daemon.bridges.mirrors.target import MirroredRun
from trackside_daemon.bridges.parquet import layout
from trackside_daemon.bridges.parquet.contents import SampleTables, alert_row, run_row
from trackside_daemon.bridges.parquet.layout import STAMP, VERSION, Origin, schemas
from trackside_daemon.bridges.parquet.store import SUFFIX, FileError, FileStore, Unfinished, failed
from trackside_daemon.history.files.jsonl import folder
from trackside_daemon.history.frames.optional_library import library
from trackside_daemon.history.read import alert_reader
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.linux.file_lock import FileLock, HeldError

TRIES = 3  # writings of a run that others write at the same time
LOCK_SECONDS = 60.0
# What a run that cannot be written raises: others can be.
BAD_RUN = (ArithmeticError, LookupError, TypeError, ValueError, sqlite3.DatabaseError)
SAMPLE_OPTIONS = {
    "use_dictionary": ["run", "key", "attempt", "rank"],
    "column_encoding": {"value": "BYTE_STREAM_SPLIT", "step": "DELTA_BINARY_PACKED", "time": "DELTA_BINARY_PACKED"},
}


class RunFiles(NamedTuple):
    """The files that a store has of a run, from one history."""

    place: str  # their place; see `layout`
    footer: Mapping[bytes, bytes]  # the entries of their footers
    samples: int  # the number of samples; -1 if their file is missing or cannot be read
    whole: bool  # all files are there and have the rows that they should have


class ParquetFiles:
    """See `trackside_daemon.bridges.mirrors.target.RunTarget`.

    Args:
        store: The place of the files.
    """

    machine = False

    def __init__(self, store: FileStore) -> None:
        self.store = store
        self.lost = 0
        self._known: set[str] = set()  # places of the runs that `write` was called with
        self._schemas = schemas()
        self._listed: dict[str, list[str]] = {}

    def write(self, connection: sqlite3.Connection, run: MirroredRun) -> int | None:
        """See `RunTarget`."""
        try:
            of = layout.origin(connection, run.id)
            if _is_done(self._parts(run, of, fresh=False), run, of):
                return None
            for name in self.store.abandoned():
                self.store.delete(name)
            for _ in range(TRIES):
                parts = self._parts(run, of)
                if _is_done(parts, run, of):
                    return None
                if (count := self._write(connection, run, of, parts)) is not None:
                    return count
        except (SendError, sqlite3.OperationalError):  # the latter would come for other runs, too
            raise
        except (*BAD_RUN, library("pyarrow").ArrowException) as error:
            raise SendError(f"{type(error).__name__}: {' '.join(str(error).split())}", "later") from None
        raise SendError("other processes write it all the time", "later")

    def close(self) -> None:
        """See `RunTarget`."""

    def delete_others(self) -> None:
        """Delete the files of all runs that `write` was not called with.

        Raises:
            SendError: The store does not answer.
        """
        kinds = ("samples", "alerts", "runs")
        places = {layout.place_of(one.name) for kind in kinds for one in self.store.files_below(kind)}
        self._delete(places - self._known)

    def _parts(self, run: MirroredRun, of: Origin, *, fresh: bool = True) -> list[RunFiles]:
        """Return what the store has of a run from this history, the newest first."""
        places = [place for place in self._places("runs", run, of, fresh=fresh) if _is_of_run(place, run)]
        parts = (self._part(place) for place in places)
        own = [part for part in parts if self._is_own(part, run, of)]
        self._known.update(part.place for part in own)
        return sorted(own, key=lambda part: (layout.split(part.place).number, _pushes(part.footer)), reverse=True)

    def _is_own(self, part: RunFiles, run: MirroredRun, of: Origin) -> bool:
        return layout.is_of(self.store, part.place, part.footer, of, _stamp(run))

    def _places(self, kind: str, run: MirroredRun, of: Origin, *, fresh: bool = True) -> Iterator[str]:
        for date in sorted(layout.dates((run.started, *of.starts))):
            folder = f"{kind}/date={date}"
            if fresh or folder not in self._listed:
                self._listed[folder] = [layout.place_of(one.name) for one in self.store.files_below(folder)]
            yield from self._listed[folder]

    def _part(self, place: str) -> RunFiles:
        one, footer = self._footer(f"runs/{place}{SUFFIX}")
        samples, other = self._footer(f"samples/{place}{SUFFIX}")
        wanted = {kind: int(footer.get(entry, -1)) for kind, entry in layout.ROWS.items()}
        whole = one == 1 and samples >= 0 and wanted["samples"] in {samples, -1}  # -1: of a version before
        if whole and wanted["alerts"] >= 0:
            whole = self._footer(f"alerts/{place}{SUFFIX}")[0] == wanted["alerts"]
        return RunFiles(place, footer or other, samples, whole)

    def _footer(self, name: str) -> tuple[int, dict[bytes, bytes]]:
        """Return rows and entries of a file; -1 and none if it cannot be read."""
        try:
            with self.store.open(name) as file:
                return file.metadata.num_rows, file.metadata.metadata or {}
        except FileError:
            return -1, {}

    def _write(self, connection: sqlite3.Connection, run: MirroredRun, of: Origin, parts: list[RunFiles]) -> int | None:
        """Write the files of a run; return None if what is there has changed meanwhile."""
        place = layout.new_place(run, of, (part.place for part in parts))
        before = max((part for part in parts if part.samples >= 0), key=lambda part: part.samples, default=None)
        alerts = alert_reader.alerts(connection, alert_reader.AlertFilter(run.id, limit=-1, evidence=False))
        kinds = ("samples", "alerts", "runs") if alerts else ("samples", "runs")
        for kind in kinds:
            self.store.prepare(f"{kind}/{place}{SUFFIX}")
        groups = SampleTables(connection, run.id, self._schemas["samples"], before and partial(self._earlier, before))
        footer = {STAMP: _stamp(run), b"trackside.version": b"%d" % VERSION, layout.SESSIONS: of.encoded_sessions()}
        with ExitStack() as stack:
            files = {kind: stack.enter_context(self.store.unfinished(f"{kind}/{place}{SUFFIX}")) for kind in kinds}
            rows = {"samples": self._fill("samples", files["samples"], footer, groups)}
            if before is not None and rows["samples"] < before.samples:
                raise SendError(
                    f"{self.store.path}/samples/{before.place}{SUFFIX} has {before.samples:,} samples, the history only "
                    f"{rows['samples']:,}; it is left as it is; delete it to have it written again",
                    "later",
                )
            if alerts:
                table = self._table("alerts", [alert_row(run.id, one) for one in alerts])
                rows["alerts"] = self._fill("alerts", files["alerts"], footer, [table])
            footer |= {entry: b"%d" % rows.get(kind, -1) for kind, entry in layout.ROWS.items()}
            footer[layout.LOST] = b"%d" % groups.lost
            rows["runs"] = self._fill("runs", files["runs"], footer, [self._table("runs", [run_row(connection, run)])])
            stack.enter_context(_one_at_a_time(connection))
            if self._parts(run, of) != parts:
                return None
            self._delete(self._rowless(run, of))
            for kind in kinds:  # the row in runs comes last: it says that all is there
                files[kind].publish()
                self._check(files[kind].target, rows[kind])
            self._delete(part.place for part in parts)
        self._known.add(place)
        self.lost += max(0, groups.lost - int((before.footer if before else {}).get(layout.LOST, 0)))
        return rows["samples"]

    def _rowless(self, run: MirroredRun, of: Origin) -> list[str]:
        """Return the places of this history's files of a run that killed writers have published without its row."""
        rows = {*self._places("runs", run, of)}
        places = {place for place in self._places("samples", run, of) if _is_of_run(place, run)} - rows
        return [place for place in places if layout.split(place).name and self._is_own(self._part(place), run, of)]

    def _delete(self, places: Iterable[str]) -> None:
        for place in places:
            for kind in ("alerts", "samples", "runs"):  # if it is killed, the next writer of the run finds what is left
                self.store.delete(f"{kind}/{place}{SUFFIX}")

    def _fill(self, kind: str, file: Unfinished, footer: dict[bytes, bytes], tables: Iterable[Any]) -> int:
        """Write an unfinished file, and return the number of its rows."""
        parquet = library("pyarrow.parquet")
        options = SAMPLE_OPTIONS if kind == "samples" else {}
        count = 0
        try:
            # An object store completes a file even after an error, so its final name comes only afterwards.
            with (
                file.stream() as stream,
                parquet.ParquetWriter(
                    stream,
                    self._schemas[kind].with_metadata(footer),
                    compression="zstd",
                    compression_level=1,
                    write_page_checksum=True,
                    **options,
                ) as writer,
            ):
                for table in tables:
                    writer.write_table(table)
                    count += len(table)
        except OSError as error:
            raise failed(file.target, error) from None
        self._check(file.path, count, deep=self.store.local)
        return count

    def _check(self, path: str, rows: int, *, deep: bool = False) -> None:
        """Read back what was written.

        Raises:
            SendError: It has not the rows that were written.
        """
        try:
            found = self.store.read_back(path[len(self.store.path) + 1 :], deep=deep)
            reason = f"has {found:,} rows"
        except FileError as error:
            found, reason = -1, str(error)
        if found != rows:
            raise SendError(f"{path}: {rows:,} rows were written, and it {reason}")

    def _earlier(self, part: RunFiles, series: tuple[int, int, str]) -> Any:
        """Return the samples of a series that a part has, as a table."""
        wanted = [(name, "=", value) for name, value in zip(("attempt", "rank", "key"), series, strict=True)]
        path, schema = f"{self.store.path}/samples/{part.place}{SUFFIX}", self._schemas["samples"]
        read = library("pyarrow.parquet").read_table
        return read(path, filters=wanted, schema=schema, filesystem=self.store.files, partitioning=None)

    def _table(self, kind: str, rows: list[dict[str, Any]]) -> Any:
        return library("pyarrow").Table.from_pylist(rows, schema=self._schemas[kind])


def make_target(settings: dict[str, Any]) -> ParquetFiles:
    """Return the target for some settings.

    Raises:
        SettingError: The address cannot be used, or a library is not installed.
    """
    store = FileStore(settings["url"])
    arrow = library("pyarrow")
    arrow.set_memory_pool(arrow.system_memory_pool())  # its own allocators keep what they freed: 50 MiB more
    return ParquetFiles(store)


def _is_of_run(place: str, run: MirroredRun) -> bool:
    return layout.split(place).run == folder(run.id)


def _stamp(run: MirroredRun) -> bytes:
    return f"{VERSION} {run.end} {run.state}".encode()


def _pushes(footer: Mapping[bytes, bytes]) -> int:
    """Return the number of pushes that files have; -1 if it is unknown."""
    words = footer.get(STAMP, b"").split()
    return int(words[2]) if len(words) > 2 and words[2].isdigit() else -1


def _is_done(parts: list[RunFiles], run: MirroredRun, of: Origin) -> bool:
    """Return whether a store has a run as it is, or as it was later, if this history is a copy from before."""
    if len(parts) != 1 or not parts[0].whole:
        return False
    stamp, footer = _stamp(run), parts[0].footer
    stored = layout.sessions(footer)
    is_later = of.sessions == stored != frozenset() and _pushes(footer) > _pushes({STAMP: stamp})
    return footer.get(STAMP) == stamp or of.sessions < stored or is_later


@contextmanager
def _one_at_a_time(connection: sqlite3.Connection) -> Iterator[None]:
    """Keep other processes that read the same history from publishing, where this one may write next to it.

    Raises:
        SendError: One has published for a minute, or is stopped.
    """
    path = Path(connection.execute("PRAGMA database_list").fetchone()[2]).with_name("archive.lock")
    until = time.monotonic() + LOCK_SECONDS
    lock: FileLock | None = None
    while lock is None:
        try:
            lock = FileLock(path, required=False)
        except HeldError as error:
            if time.monotonic() > until:
                raise SendError(f"{path}: process {error} has it for {LOCK_SECONDS:g} s", "later") from None
            time.sleep(0.05)
        except OSError:
            break
    try:
        yield
    finally:
        if lock is not None:
            lock.close()
