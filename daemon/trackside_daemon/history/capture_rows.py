"""Write and read captures."""

import sqlite3

import msgspec

from trackside_daemon.history.sanitize import to_json
from trackside_daemon.model.capture import Capture


def write_capture(connection: sqlite3.Connection, run: int | None, capture: Capture) -> None:
    """Insert or replace a capture; *run* is the id of its run's row, None if there is none, so that it is not kept."""
    if run is not None:
        connection.execute(
            "INSERT INTO capture (run, uid, asked, record) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (uid) DO UPDATE SET record = excluded.record",
            (run, capture.id, capture.asked, to_json(msgspec.to_builtins(capture))),
        )


def captures(connection: sqlite3.Connection, run: str = "") -> list[Capture]:
    """Return the captures of a run, by its id, or of all runs, oldest first."""
    rows = connection.execute(
        "SELECT record FROM capture JOIN run ON run.id = capture.run WHERE NOT deleted AND ? IN ('', run.uid) "
        "ORDER BY asked, capture.id",
        (run,),
    )
    return [_decode(record) for (record,) in rows]


def capture(connection: sqlite3.Connection, id_: str) -> Capture | None:
    """Return a capture by its id; None if there is none."""
    query = "SELECT record FROM capture JOIN run ON run.id = capture.run WHERE capture.uid = ? AND NOT deleted"
    row = connection.execute(query, (id_,)).fetchone()
    return None if row is None else _decode(row[0])


_decode = msgspec.json.Decoder(Capture).decode
