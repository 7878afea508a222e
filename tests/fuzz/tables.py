"""The tables of the history in memory, with the calls of the recorder, the database and the writer that they stand in for."""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trackside_daemon.history import schema
from trackside_daemon.history.record.store import RecordStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside_daemon.model.metric import Batch


class Tables:
    """Tables that are empty again after each `transaction`; errors are those of the caller."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        schema.migrate(self.connection)
        self.store = RecordStore(self.connection)

    @contextmanager
    def transaction(self) -> Iterator[Tables]:
        """Begin with empty tables, and empty them at the end."""
        self.connection.execute("BEGIN")
        self.store = RecordStore(self.connection)
        try:
            yield self
        finally:
            self.connection.execute("ROLLBACK")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Return the connection, as `Database.reading`."""
        yield self.connection

    def accept(self, batch: Batch) -> None:
        """Write the records of a batch, as `Recorder.accept`."""
        for record in batch.records:
            self.store.apply(record)
        self.store.write_progress()

    def call(self, work: Callable[[RecordStore], Any]) -> Future[Any]:
        """Do some work, as `Writer.call`."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(self.store))
            self.store.write_progress()
        except Exception as error:  # noqa: BLE001  the caller gets it
            future.set_exception(error)
        return future
