"""Write and read checkpoints."""

import sqlite3
from operator import attrgetter
from typing import NamedTuple

import msgspec

from trackside_daemon.history.sanitize import to_json
from trackside_daemon.model.checkpoint import Checkpoint


class StoredCheckpoint(NamedTuple):
    """A checkpoint, with the name of its run and the id of the run's owner."""

    checkpoint: Checkpoint
    name: str
    owner: str


def write_checkpoint(connection: sqlite3.Connection, run: int | None, checkpoint: Checkpoint) -> None:
    """Insert or replace a checkpoint; *run* is the id of its run's row, None if there is none, so that it is not kept."""
    if run is not None:
        connection.execute(
            "INSERT INTO checkpoint (run, path, time, record) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (run, path) DO UPDATE SET time = excluded.time, record = excluded.record",
            (run, checkpoint.path, checkpoint.time, to_json(msgspec.to_builtins(checkpoint))),
        )


def checkpoints(connection: sqlite3.Connection, run: str) -> list[Checkpoint]:
    """Return the checkpoints of a run, by its id, oldest first."""
    rows = connection.execute(
        "SELECT record FROM checkpoint JOIN run ON run.id = checkpoint.run WHERE NOT deleted AND run.uid = ? "
        "ORDER BY checkpoint.id",
        (run,),
    )
    return sorted((_decode(record) for (record,) in rows), key=attrgetter("order"))


def recent_checkpoints(connection: sqlite3.Connection, since: float) -> list[StoredCheckpoint]:
    """Return the checkpoints of runs that have not ended before *since*, in Unix seconds, oldest first."""
    rows = connection.execute(
        "SELECT record, run.name, coalesce(run.owner, '') FROM checkpoint JOIN run ON run.id = checkpoint.run "
        "WHERE NOT deleted AND coalesce(run.ended >= ?, 1) AND json_extract(record, '$.state') != 'gone' "
        "ORDER BY checkpoint.time, checkpoint.id",
        (since,),
    )
    return [StoredCheckpoint(_decode(record), *run) for record, *run in rows]


_decode = msgspec.json.Decoder(Checkpoint).decode
