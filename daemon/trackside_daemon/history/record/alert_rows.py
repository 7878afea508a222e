"""Write alerts, what is added to them later, and silences."""

import sqlite3
from collections.abc import Mapping
from typing import Any

from trackside_daemon.history.sanitize import to_json
from trackside_daemon.history.schema import HOST
from trackside_daemon.model.records import Alert, AlertNote, Silence

SILENCES_KEPT = 30 * 86400.0  # seconds for which a silence stays in the history after its end
# Evidence that an alert no longer has if its record lacks the name beside it: what ended has come again, or another run hangs.
_GONE = {
    **{name: name for name in ("recovered", "accepted", "conclusion")},
    "hang": "conclusion",
    **dict.fromkeys(("addition", "checkpoint", "console", "exception"), "addition"),
}


def write_alert(connection: sqlite3.Connection, run: int, record: Alert) -> None:
    """Insert an alert, or update it if the history has it; *run* is the id of its run's row."""
    evidence = dict(record.evidence)
    gone = {name: None for name, of in _GONE.items() if of not in evidence}  # json_patch removes what is null: RFC 7396
    connection.execute(
        "INSERT INTO alert (run, alert, severity, labels, started, ended, summary, description, evidence) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run, alert, labels, started) DO UPDATE SET "
        "severity = excluded.severity, ended = excluded.ended, summary = excluded.summary, "
        "description = excluded.description, evidence = json_patch(evidence, ?)",
        (
            run,
            record.alert,
            record.severity,
            _labels(record.labels),
            record.started,
            record.ended,
            record.summary,
            record.description,
            to_json(evidence),
            to_json(gone | evidence),
        ),
    )


def write_note(connection: sqlite3.Connection, run: int, record: AlertNote) -> None:
    """Add evidence and notifications to an alert; do nothing if the history does not have it."""
    connection.execute(
        "UPDATE alert SET evidence = json_patch(evidence, ?), notified = json_patch(notified, ?) "
        "WHERE run = ? AND alert = ? AND labels = ? AND started = ?",
        (
            to_json(dict(record.evidence)),
            to_json(dict(record.notified)),
            run,
            record.alert,
            _labels(record.labels),
            record.started,
        ),
    )


def dismissal(alert: Mapping[str, Any], time: float | None, comment: str) -> AlertNote:
    """Return the note that an alert, as the API shows it, was a false alarm; without a *time*, that it was none."""
    # A null removes the entry.
    dismissed = None if time is None else {"time": time, "comment": comment}
    return AlertNote(alert["alert"], alert["started"], alert["run"] or "", alert["labels"], {"dismissed": dismissed})


def alert_id(connection: sqlite3.Connection, record: Alert) -> int | None:
    """Return the id of an alert; None if the history does not have it."""
    run = "(SELECT id FROM run WHERE uid = ? AND NOT deleted)" if record.run else str(HOST)
    row = connection.execute(
        f"SELECT id FROM alert WHERE run = {run} AND alert = ? AND labels = ? AND started = ?",  # noqa: S608
        (*((record.run,) if record.run else ()), record.alert, _labels(record.labels), record.started),
    ).fetchone()
    return None if row is None else int(row[0])


def write_silence(connection: sqlite3.Connection, record: Silence) -> None:
    """Insert or replace a silence, and delete those that ended `SILENCES_KEPT` ago."""
    connection.execute("DELETE FROM silence WHERE until < ?", (record.started - SILENCES_KEPT,))
    connection.execute(
        "INSERT OR REPLACE INTO silence (id, labels, started, until, comment) VALUES (?, ?, ?, ?, ?)",
        (record.id, _labels(record.labels), record.started, record.until, record.comment),
    )


def _labels(labels: Mapping[str, str]) -> str:
    return to_json(dict(sorted(labels.items())))  # sorted, since the text is a part of the alert's key
