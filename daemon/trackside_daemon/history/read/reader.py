"""What the history tells of runs, in the shapes that the API and the commands show. Times are Unix seconds."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trackside_daemon.history.read.series import LogTail, StoredSeries, find
from trackside_daemon.history.read.summary import loss, metrics
from trackside_daemon.history.schema import HOST
from trackside_daemon.history.time_accounting import efficiency, rank_times
from trackside_daemon.model.records import Alert, Notified, Silence

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Mapping, Sequence

MACHINE = "trackside_"
"""Keys that begin so are GPU and host series, which belong to the machine and not to a rank."""

_decode = msgspec.json.decode
_RUN = (
    "uid, name, state, cause, started, ended, (SELECT max(number) FROM attempt WHERE attempt.run = run.id), step, loss, "
    "tags, pinned"
)


_ALERT = (
    "SELECT alert.id, run.uid, run.name, alert.alert, alert.severity, alert.started, alert.ended, alert.summary, "
    "alert.description, alert.labels, alert.notified, CASE WHEN ? THEN alert.evidence END "
    "FROM alert LEFT JOIN run ON run.id = alert.run "
    "WHERE coalesce(NOT run.deleted, 1)"
)
_OURS = "(coalesce(run.imported, 0) = 0 OR alert.started BETWEEN run.imported AND ?)"
"""Those of this machine: an imported run's began before it was imported, or so far ahead that no clock is wrong by that."""
_KEPT = (
    "SELECT alert.alert, alert.severity, alert.started, coalesce(run.uid, ''), alert.labels, alert.summary, "  # noqa: S608
    "alert.description, alert.ended, alert.evidence, alert.notified FROM alert LEFT JOIN run ON run.id = alert.run "
    f"WHERE coalesce(NOT run.deleted, 1) AND {_OURS}"
)
AHEAD_SECONDS = 86400.0


class UnknownRunError(LookupError):
    """No run is called so, or several are; the message says what there is."""


class RunFilter(NamedTuple):
    """Which runs: all that are given hold.

    Attributes:
        name: A part of the name or the beginning of the id.
        since: Began then or later; *until* then or before.
        limit: So many of the newest; 0 for all.
        launch: Of the command that a ``trackside run`` has started.
    """

    name: str = ""
    tag: str = ""
    state: str = ""
    since: float | None = None
    until: float | None = None
    limit: int = 0
    launch: str = ""


class AlertFilter(NamedTuple):
    """Which alerts: all that are given hold.

    Attributes:
        run: The run's id.
        alert: The alert's name, in which * and ? may stand for others; small letters are as good as capitals.
        firing: Those of this machine that fire at this Unix time.
        limit: So many of the newest; -1 for all.
        evidence: Whether they have their evidence, which may be long.
    """

    run: str = ""
    severity: str = ""
    alert: str = ""
    firing: float | None = None
    limit: int = 1000
    evidence: bool = True


class RunSeries(NamedTuple):
    """A series, and whose it is; *rank* and *attempt* are None for the machine's."""

    run: str
    attempt: int | None
    rank: int | None
    series: StoredSeries
    tail: LogTail


def runs(connection: sqlite3.Connection, wanted: RunFilter = RunFilter()) -> list[dict[str, Any]]:  # noqa: B008  it is frozen
    """The runs, the newest first."""
    conditions = ["NOT deleted"]
    values: list[Any] = []
    for condition, value in (
        ("(instr(name, ?) OR instr(uid, ?) = 1)", wanted.name),
        ("EXISTS (SELECT 1 FROM json_each(tags) WHERE json_each.value = ?)", wanted.tag),
        ("state = ?", wanted.state),
        ("started >= ?", wanted.since),
        ("started <= ?", wanted.until),
        ("EXISTS (SELECT 1 FROM attempt WHERE run = run.id AND json_extract(about, '$.launch') = ?)", wanted.launch),
    ):
        if value not in ("", None):
            conditions.append(condition)
            values += [value] * condition.count("?")
    query = f"SELECT {_RUN} FROM run WHERE {' AND '.join(conditions)} ORDER BY started DESC, id DESC LIMIT ?"  # noqa: S608
    return [_listed(row) for row in connection.execute(query, (*values, wanted.limit or -1))]


def resolve(connection: sqlite3.Connection, text: str) -> str:
    """The id of the run that *text* means: an id, the beginning of one alone, or a name, of which the newest counts.

    Raises:
        UnknownRunError: There is none, or several ids begin so.
    """
    by_id = "SELECT uid FROM run WHERE NOT deleted AND uid = ?"
    by_name = "SELECT uid FROM run WHERE NOT deleted AND name = ? ORDER BY started DESC, id DESC LIMIT 1"
    for query in (by_id, by_name):
        if (found := connection.execute(query, (text,)).fetchone()) is not None:
            return str(found[0])
    begin = connection.execute(
        "SELECT uid FROM run WHERE NOT deleted AND instr(uid, ?) = 1 ORDER BY started DESC LIMIT 5", (text,)
    ).fetchall()
    if len(begin) == 1 and text:
        return str(begin[0][0])
    if begin and text:
        raise UnknownRunError(f"run {text!r}: several ids begin so: {', '.join(str(uid) for (uid,) in begin)}")
    names = connection.execute("SELECT name FROM run WHERE NOT deleted ORDER BY started DESC LIMIT 3").fetchall()
    newest = ", ".join(str(name) for (name,) in names)
    raise UnknownRunError(f"run {text!r}: there is none" + (f"; the newest are {newest}" if newest else " at all yet"))


def run(connection: sqlite3.Connection, uid: str) -> dict[str, Any]:
    """All that is known of a run but its samples.

    Raises:
        UnknownRunError: There is none with this id.
    """
    id_, about = _about(connection, uid)
    told = list(metrics(connection, id_))
    step = max((one["last_step"] for one in told if one["last_step"] is not None), default=None)
    time_ = efficiency(rank_times(connection, id_), about["attempt_list"], time.time())
    return {**about, **time_, "step": step, "loss": loss(told), "metrics": told}


def head(connection: sqlite3.Connection, uid: str) -> dict[str, Any]:
    """What is known of a run without a look at its series: step and loss are those of what is packed.

    Raises:
        UnknownRunError: There is none with this id.
    """
    return _about(connection, uid)[1]


def _about(connection: sqlite3.Connection, uid: str) -> tuple[int, dict[str, Any]]:
    trimmed = "EXISTS (SELECT 1 FROM series JOIN stream ON stream.id = stream WHERE run = run.id AND series.trimmed)"
    row = connection.execute(f"SELECT {_RUN}, id, {trimmed} FROM run WHERE uid = ? AND NOT deleted", (uid,)).fetchone()  # noqa: S608
    if row is None:
        raise UnknownRunError(f"run {uid!r}: there is none")
    *listed, id_, trimmed = row
    attempts = connection.execute(
        "SELECT number, state, cause, started, ended, config, about FROM attempt WHERE run = ? ORDER BY number", (id_,)
    )
    names = ("attempt", "state", "cause", "started", "ended")
    every = rank_times(connection, id_)
    return id_, {
        **_listed(listed),
        "trimmed": bool(trimmed),
        "attempt_list": [
            {
                **dict(zip(names, known, strict=True)),
                "config": _loads(config),
                **json.loads(told),
                **_by_rank("phases", {one.rank: one.phases for one in every if one.attempt == known[0]}),
                **_by_rank("lost", {one.rank: one.lost for one in every if one.attempt == known[0]}),
            }
            for *known, config, told in attempts
        ],
    }


def _by_rank(name: str, told: Mapping[int, dict[str, float]]) -> dict[str, dict[str, dict[str, float]]]:
    """Of the ranks that have any; empty where none has."""
    found = {str(rank): seconds for rank, seconds in told.items() if seconds}
    return {name: found} if found else {}


def events(connection: sqlite3.Connection, uid: str = "", limit: int = 1000) -> list[dict[str, Any]]:
    """The newest events, oldest first; of one run, or of all."""
    found = connection.execute(
        "SELECT run.uid, run.name, event.attempt, event.rank, event.time, event.step, event.kind, event.fields "
        "FROM event JOIN run ON run.id = event.run WHERE NOT run.deleted AND (? = '' OR run.uid = ?) "
        "ORDER BY event.id DESC LIMIT ?",
        (uid, uid, limit),
    ).fetchall()
    names = ("run", "name", "attempt", "rank", "time", "step", "kind")
    return [{**dict(zip(names, row, strict=True)), "fields": json.loads(fields)} for *row, fields in reversed(found)]


def alerts(connection: sqlite3.Connection, wanted: AlertFilter = AlertFilter()) -> list[dict[str, Any]]:  # noqa: B008  it is frozen
    """The newest alerts, oldest first."""
    query = _ALERT
    values: list[Any] = [wanted.evidence]
    for condition, value in (
        ("run.uid = ?", wanted.run),
        ("alert.severity = ?", wanted.severity),
        ("lower(alert.alert) GLOB ?", wanted.alert.lower().replace("[", "[[]")),
        (f"alert.ended IS NULL AND {_OURS}", None if wanted.firing is None else wanted.firing + AHEAD_SECONDS),
    ):
        if value not in ("", None):
            query += f" AND {condition}"
            values.append(value)
    query += " ORDER BY alert.started DESC, alert.id DESC LIMIT ?"
    found = connection.execute(query, (*values, wanted.limit)).fetchall()
    return [_told(row) for row in reversed(found)]


def alert(connection: sqlite3.Connection, number: int) -> dict[str, Any] | None:
    """One alert by its id; None when there is none."""
    found = connection.execute(f"{_ALERT} AND alert.id = ?", (True, number)).fetchone()
    return None if found is None else _told(found)


def _told(row: Sequence[Any]) -> dict[str, Any]:
    *fields, labels, notified, evidence = row
    names = ("id", "run", "name", "alert", "severity", "started", "ended", "summary", "description")
    documents = {
        "labels": json.loads(labels),
        **({} if evidence is None else {"evidence": json.loads(evidence)}),
        "notified": sorted(json.loads(notified)),
    }
    return {**dict(zip(names, fields, strict=True)), **documents}


def silences(connection: sqlite3.Connection, now: float) -> list[Silence]:
    """Those that have not ended at *now*, in Unix seconds, the first to end first."""
    found = connection.execute(
        "SELECT id, labels, started, until, comment FROM silence WHERE until > ? ORDER BY until, id", (now,)
    ).fetchall()
    return [Silence(id_, json.loads(labels), *rest) for id_, labels, *rest in found]


def firing(connection: sqlite3.Connection, now: float, limit: int = 1000) -> list[Alert]:
    """The newest alerts of this machine that have not ended at *now*, in Unix seconds, oldest first."""
    query = f"{_KEPT} AND alert.ended IS NULL ORDER BY alert.started DESC, alert.id DESC LIMIT ?"
    return [_alert(row) for row in reversed(connection.execute(query, (now + AHEAD_SECONDS, limit)).fetchall())]


def ended(connection: sqlite3.Connection, since: float, now: float, limit: int = 1000) -> list[Alert]:
    """The newest alerts of this machine that have ended at *since*, in Unix seconds, or later; the first to end first."""
    query = f"{_KEPT} AND alert.ended >= ? ORDER BY alert.ended DESC, alert.id DESC LIMIT ?"
    return [_alert(row) for row in reversed(connection.execute(query, (now + AHEAD_SECONDS, since, limit)).fetchall())]


def _alert(row: Sequence[Any]) -> Alert:
    alert, severity, started, run, labels, summary, description, ended, evidence, notified = row
    return Alert(
        *(alert, severity, started, run, json.loads(labels), summary, description, ended, json.loads(evidence)),
        notified={sink: Notified(*told) for sink, told in json.loads(notified).items()},
    )


def series(
    connection: sqlite3.Connection,
    uid: str,
    keys: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
    attempt: int | None = None,
) -> list[RunSeries]:
    """The series of a run, attempt by attempt and rank by rank.

    Args:
        connection: In a transaction.
        uid: The run's id.
        keys: Only these; those that begin with `MACHINE` are the machine's, written as on ``/metrics``, or by the
            family's name alone for all its series. None for all that the run's ranks have pushed.
        ranks: Only these; None for the lowest, empty for all.
        attempt: Only this; None for all.
    """
    streams = connection.execute(
        "SELECT stream.id, stream.attempt, stream.rank FROM stream JOIN run ON run.id = stream.run "
        "WHERE run.uid = ? AND NOT run.deleted AND (? IS NULL OR stream.attempt = ?) ORDER BY stream.attempt, stream.rank",
        (uid, attempt, attempt),
    ).fetchall()
    if ranks is None:
        lowest = {number: rank for _, number, rank in reversed(streams)}
        streams = [row for row in streams if row[2] == lowest[row[1]]]
    elif ranks:
        streams = [row for row in streams if row[2] in ranks]
    found = []
    own = None if keys is None else [key for key in keys if not key.startswith(MACHINE)]
    for stream, number, rank in streams:
        tail = LogTail(connection, stream)
        found += [RunSeries(uid, number, rank, one, tail) for one in find(connection, stream, tail, own)]
    return found + _machine(connection, uid, [key for key in keys or () if key.startswith(MACHINE)])


def span(connection: sqlite3.Connection, uid: str) -> tuple[float, float | None]:
    """When a run began and ended."""
    started, ended = connection.execute("SELECT started, ended FROM run WHERE uid = ?", (uid,)).fetchone()
    return float(started), ended


def _machine(connection: sqlite3.Connection, uid: str, keys: Sequence[str]) -> list[RunSeries]:
    if not keys:
        return []
    tail = LogTail(connection, HOST)
    wanted = set(keys)
    every = find(connection, HOST, tail)
    return [RunSeries(uid, None, None, one, tail) for one in every if {one.key, one.key.partition("{")[0]} & wanted]


def _listed(row: Sequence[Any]) -> dict[str, Any]:
    uid, name, state, cause, started, ended, attempt, step, loss, tags, pinned = row
    return {
        "id": uid,
        "name": name,
        "state": state,
        "cause": cause,
        "started": started,
        "ended": ended,
        "attempt": attempt,
        "step": step,
        "loss": loss,
        "tags": _decode(tags),
        "pinned": bool(pinned),
    }


def _loads(text: str) -> Any:
    return json.loads(text) if text else None
