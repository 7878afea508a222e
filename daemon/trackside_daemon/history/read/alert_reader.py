"""Read alerts and silences in the shapes of the API and the pipeline; times are Unix seconds."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from trackside_daemon.model.records import AHEAD_SECONDS, Alert, Notified, Silence, fingerprint

_ALERT = (
    "SELECT alert.id, run.uid, run.name, alert.alert, alert.severity, alert.started, alert.ended, alert.summary, "
    "alert.description, alert.labels, alert.notified, json_extract(alert.evidence, '$.dismissed'), "
    "CASE WHEN ? THEN json_remove(alert.evidence, '$.dismissed') END "
    "FROM alert LEFT JOIN run ON run.id = alert.run "
    "WHERE coalesce(NOT run.deleted, 1)"
)
# Alerts of this machine. Those of an imported run began before the import, or further ahead than a clock can be wrong.
_OWN = "(coalesce(run.imported, 0) = 0 OR alert.started BETWEEN run.imported AND ?)"
_FIRING = f"alert.ended IS NULL AND {_OWN}"
_ALERT_RECORD = (
    "SELECT alert.alert, alert.severity, alert.started, coalesce(run.uid, ''), alert.labels, alert.summary, "  # noqa: S608
    "alert.description, alert.ended, json_remove(alert.evidence, '$.dismissed'), alert.notified FROM alert LEFT JOIN run ON run.id = alert.run "
    f"WHERE coalesce(NOT run.deleted, 1) AND {_OWN}"
)


class AlertFilter(NamedTuple):
    """Conditions on alerts; all of them have to hold."""

    run: str = ""  # the run's id
    severity: str = ""  # the alert's severity
    alert: str = ""  # the alert's name, with the wildcards * and ?; case does not matter
    firing: float | None = None  # a Unix time: only alerts of this machine that fire then
    past: float | None = None  # a Unix time: only alerts that do not fire then
    limit: int = 1000  # number of alerts, the newest first; -1 for all
    evidence: bool = True  # include the evidence, which may be long


def alerts(connection: sqlite3.Connection, wanted: AlertFilter = AlertFilter()) -> list[dict[str, Any]]:  # noqa: B008  it is frozen
    """Return the newest alerts that a filter selects, oldest first."""
    query = _ALERT
    values: list[Any] = [wanted.evidence]
    for condition, value in (
        ("run.uid = ?", wanted.run),
        ("alert.severity = ?", wanted.severity),
        ("lower(alert.alert) GLOB ?", wanted.alert.lower().replace("[", "[[]")),  # [ begins a set of characters in GLOB
        (_FIRING, None if wanted.firing is None else wanted.firing + AHEAD_SECONDS),
        (f"NOT ({_FIRING})", None if wanted.past is None else wanted.past + AHEAD_SECONDS),
    ):
        if value not in ("", None):
            query += f" AND {condition}"
            values.append(value)
    query += " ORDER BY alert.started DESC, alert.id DESC LIMIT ?"
    newest = connection.execute(query, (*values, wanted.limit)).fetchall()
    return [_alert_json(row) for row in reversed(newest)]


def batches(
    connection: sqlite3.Connection, run: str, limit: int = 1000, *, step: int | None = None, rank: int | None = None
) -> list[dict[str, Any]]:
    """Return the batches of data in the evidence of a run's newest alerts, oldest first, each with the alert's fingerprint.

    Those of a *step* and a *rank*, if they are given.
    """
    rows = connection.execute(
        "SELECT alert.id, alert.alert, alert.labels, alert.started, json_extract(alert.evidence, '$.batches') FROM alert "
        "JOIN run ON run.id = alert.run WHERE run.uid = ? AND json_type(alert.evidence, '$.batches') = 'array' "
        "ORDER BY alert.started DESC, alert.id DESC LIMIT ?",
        (run, limit),
    ).fetchall()
    return [
        {**batch, "alert": id_, "fingerprint": fingerprint(name, run, json.loads(labels), started)}
        for id_, name, labels, started, found in reversed(rows)
        for batch in json.loads(found)
        if step in {None, batch["step"]} and rank in {None, batch["rank"]}
    ]


def alert_names(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the alerts that have fired."""
    return {name for (name,) in connection.execute("SELECT DISTINCT alert FROM alert")}


def alert(connection: sqlite3.Connection, number: int) -> dict[str, Any] | None:
    """Return an alert by its id; None if there is none."""
    row = connection.execute(f"{_ALERT} AND alert.id = ?", (True, number)).fetchone()
    return None if row is None else _alert_json(row)


def _alert_json(row: Sequence[Any]) -> dict[str, Any]:
    *fields, labels, notified, dismissed, evidence = row
    names = ("id", "run", "name", "alert", "severity", "started", "ended", "summary", "description")
    documents = {
        "labels": json.loads(labels),
        "fingerprint": fingerprint(row[3], row[1] or "", json.loads(labels), row[5]),
        **({} if evidence is None else {"evidence": json.loads(evidence)}),
        "notified": sorted(json.loads(notified)),
        "dismissed": None if dismissed is None else json.loads(dismissed),
    }
    return {**dict(zip(names, fields, strict=True)), **documents}


def silences(connection: sqlite3.Connection, now: float) -> list[Silence]:
    """Return the silences that have not ended at *now*, in Unix seconds, in the order of their end."""
    rows = connection.execute(
        "SELECT id, labels, started, until, comment FROM silence WHERE until > ? ORDER BY until, id", (now,)
    ).fetchall()
    return [Silence(id_, json.loads(labels), *rest) for id_, labels, *rest in rows]


def firing(connection: sqlite3.Connection, now: float, limit: int = 1000) -> list[Alert]:
    """Return the newest alerts of this machine that have not ended at *now*, in Unix seconds, oldest first."""
    query = f"{_ALERT_RECORD} AND alert.ended IS NULL ORDER BY alert.started DESC, alert.id DESC LIMIT ?"
    rows = connection.execute(query, (now + AHEAD_SECONDS, limit)).fetchall()
    return [_alert_record(row) for row in reversed(rows)]


def ended(connection: sqlite3.Connection, since: float, now: float, limit: int = 1000) -> list[Alert]:
    """Return the newest alerts of this machine that ended at *since*, in Unix seconds, or later, in order of end."""
    query = f"{_ALERT_RECORD} AND alert.ended >= ? ORDER BY alert.ended DESC, alert.id DESC LIMIT ?"
    rows = connection.execute(query, (now + AHEAD_SECONDS, since, limit)).fetchall()
    return [_alert_record(row) for row in reversed(rows)]


def _alert_record(row: Sequence[Any]) -> Alert:
    alert, severity, started, run, labels, summary, description, ended, evidence, notified = row
    return Alert(
        alert,
        severity,
        started,
        run,
        json.loads(labels),
        summary,
        description,
        ended,
        json.loads(evidence),
        notified={sink: Notified(*fields) for sink, fields in json.loads(notified).items()},
    )
