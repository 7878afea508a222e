"""Histories for tests, written by the real writer."""

from __future__ import annotations

import io
import json
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from session_records import batch_ingested, session_opened

from trackside.packing import pack
from trackside.wire import Block, Clock, Hello, Identity, Totals
from trackside_daemon.history.database import Database
from trackside_daemon.history.files.export import FORMATS, export
from trackside_daemon.history.files.importing import ImportResult, import_run
from trackside_daemon.history.files.run_file import open_run_file
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.model.records import BatchIngested, RunState, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.model.records import Record

BEGIN = 1_700_000_000.0
"""Unix time at which the runs of tests begin."""

Pushed = tuple[int, int, "Mapping[str, float]"]
"""Step, time in Unix microseconds, values."""


class History:
    """A file and its writer."""

    def __init__(self, directory: Path, **options: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.database = Database(directory)
        self.writer = Writer(self.database, Bounds(0), **options)
        self.writer.start()

    def put(self, records: Sequence[Record]) -> None:
        """Write records, and wait until they are committed."""
        self.writer.put(list(records))
        self.writer.call(lambda _: None).result(60)

    def wait_until_packed(self) -> None:
        """Wait until all samples are in blocks: lists show a run's step and loss of packed samples."""
        while self.writer.call(lambda store: bool(store.due)).result(60):
            pass

    def import_file(self, data: bytes, file: str = "run.csv", **options: Any) -> ImportResult:
        """Import a file with these bytes."""
        return import_run(self.writer, open_run_file(io.BytesIO(data), file, **options))

    def export(self, run: str, form: str) -> bytes:
        """Return an export of a run."""
        return b"".join(export(self.database, run, form))  # type: ignore[arg-type]

    def exports(self, run: str) -> dict[str, bytes]:
        """Return all three exports of a run."""
        return {form: self.export(run, form) for form in FORMATS}

    def close(self) -> None:
        """Stop the writer and close the file."""
        self.writer.stop()
        self.database.close()


@contextmanager
def history(directory: Path) -> Iterator[History]:
    """Return a history that is closed after the block."""
    opened_history = History(directory)
    try:
        yield opened_history
    finally:
        opened_history.close()


def session(run: str, attempt: int = 0, rank: int = 0) -> bytes:
    """Return the session id that tests use for a rank."""
    short = run if len(run) <= 8 else sha256(run.encode()).hexdigest()[:8]
    return f"{short:8}{attempt:4}{rank:4}".encode()[:16]


def opened(run: str, *, name: str = "", attempt: int = 0, rank: int = 0, world: int = 1, **hello: Any) -> SessionOpened:
    """Return the opening of a session; attempts begin a thousand seconds apart, the first at `BEGIN`."""
    started = hello.pop("started", BEGIN + 1000 * attempt)
    host = hello.pop("host", "node-1")
    identity = Identity(
        run, name or run, attempt, rank, world=world, host=host, git_commit="0123abc", framework="torch 2.13.0"
    )
    config = hello.pop("config", None)
    message = Hello(
        identity,
        Clock(0, 0),
        round(started * 1e9),
        Totals(),
        config="" if config is None else json.dumps(config),
        **hello,
    )
    return session_opened(session(run, attempt, rank), message, name or run, attempt, started)


def ingested(run: str, pushes: Sequence[Pushed], *, number: int = 1, attempt: int = 0, rank: int = 0) -> BatchIngested:
    """Return pushes of a rank, each in its own block."""
    blocks = [
        Block(list(values), pack("q", [step]), pack("q", [time * 1000]), pack("d", values.values()))
        for step, time, values in pushes
    ]
    return batch_ingested(session(run, attempt, rank), number, blocks)


def column(
    run: str, keys: Sequence[str], steps: int, *, number: int = 1, rank: int = 0, attempt: int = 0
) -> BatchIngested:
    """Return one block of steps, a second each; the value is the step, plus a tenth for each further key."""
    values = [step + place / 10 for step in range(steps) for place in range(len(keys))]
    begin = round((BEGIN + 1000 * attempt) * 1e9)
    times = pack("q", [begin + step * 1_000_000_000 for step in range(steps)])
    return batch_ingested(
        session(run, attempt, rank), number, [Block(list(keys), pack("q", range(steps)), times, pack("d", values))]
    )


def finished(run: str, *, attempt: int = 0, state: str = "finished", cause: str = "", after: float = 60.0) -> RunState:
    """Return the end of an attempt."""
    return RunState(run, attempt, state, cause, BEGIN + 1000 * attempt + after)
