"""Import runs from files into the history, each completely or not at all."""

import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from trackside_daemon.history.files.run_file import RunFile
from trackside_daemon.history.record.store import RecordStore
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.model.records import BatchIngested, MachineSample, Record

BATCH_BYTES = 2 * 1024 * 1024  # approximate size of a transaction; live runs are written between two of them

TIMEOUT_SECONDS = 600.0  # longest wait for a transaction, in seconds


class ImportingError(Exception):
    """The file was not imported; the message is one line: why, and what to do."""


class ImportResult(NamedTuple):
    """Id and number of samples of an imported run, and notes for the user."""

    run: str
    samples: int
    notes: list[str]


def import_run(writer: Writer, run_file: RunFile) -> ImportResult:
    """Import a run, completely or not at all.

    Args:
        writer: A started writer, which goes on writing live runs.
        run_file: The file, not iterated over yet.

    Raises:
        FormatError: A line of the file is invalid.
        ImportingError: The history has the run already, or cannot be written.
    """
    begun = False
    try:
        batches = _batches(iter(run_file))
        batch: list[Record] | None = next(batches)
        while batch is not None:
            following = next(batches, None)
            work = partial(_write, run_file, batch, begins=not begun, ends=following is None)
            writer.call(work).result(TIMEOUT_SECONDS)
            batch, begun = following, True
    except BaseException as error:
        if begun:
            with suppress(sqlite3.Error, FutureTimeoutError):
                writer.call(partial(_discard, run_file.run)).result(TIMEOUT_SECONDS)
        if isinstance(error, (sqlite3.Error, FutureTimeoutError)):
            raise ImportingError(
                f"{run_file.file}: the history cannot be written: {error or 'it takes too long'}"
            ) from error
        raise
    return ImportResult(run_file.run, run_file.samples, run_file.notes)


def _batches(records: Iterator[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += 256
        if isinstance(record, BatchIngested):
            size += sum(8 * (len(one.values) + 2 * len(one.steps)) for one in record.columns)
        elif isinstance(record, MachineSample):
            size += 8 * len(record.values)
        if size >= BATCH_BYTES:
            yield batch
            batch = []
            size = 0
    yield batch


def _write(run_file: RunFile, batch: list[Record], store: RecordStore, *, begins: bool, ends: bool) -> None:
    if begins:
        _begin(run_file, store)
    for record in batch:
        store.apply(record)
    if begins:
        store.connection.execute(
            "UPDATE run SET deleted = 2, imported = ? WHERE uid = ? AND NOT deleted", (time.time(), run_file.run)
        )
    if ends:
        _publish(run_file, store)


def _begin(run_file: RunFile, store: RecordStore) -> None:
    uid = run_file.run
    connection = store.connection
    if connection.execute("SELECT 1 FROM run WHERE uid = ? AND deleted != 1", (uid,)).fetchone():
        raise ImportingError(
            f"{run_file.file}: run {run_file.name!r} ({uid}) is in the history already; to import it again, give it "
            "another id: --id NEW"
        )
    connection.execute(  # those of a deleted run of this id whose rows are not removed yet
        "DELETE FROM session WHERE stream IN "
        "(SELECT stream.id FROM stream JOIN run ON run.id = stream.run WHERE run.uid = ?)",
        (uid,),
    )


def _publish(run_file: RunFile, store: RecordStore) -> None:
    """Show the complete run to readers, without firing alerts."""
    _end_alerts(run_file, store)
    store.connection.execute(
        "UPDATE run SET deleted = 0, pinned = ? WHERE uid = ? AND deleted = 2", (int(run_file.pinned), run_file.run)
    )


def _end_alerts(run_file: RunFile, store: RecordStore) -> None:
    """End the alerts that fired at the export: with their attempt, or else with the last sample."""
    store.connection.execute(
        "UPDATE alert SET ended = max(started, coalesce((SELECT attempt.ended FROM attempt WHERE attempt.run = alert.run "
        "AND attempt.started <= alert.started ORDER BY attempt.number DESC LIMIT 1), ?)) "
        "WHERE ended IS NULL AND run = (SELECT id FROM run WHERE uid = ? AND deleted = 2)",
        (run_file.last, run_file.run),
    )


def _discard(uid: str, store: RecordStore) -> None:
    store.connection.execute("UPDATE run SET deleted = 1 WHERE uid = ? AND deleted = 2", (uid,))
