"""Read runs, events and series in the shapes of the API and the commands; times are Unix seconds."""

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from trackside.rl_keys import KEYS, Meaning, meaning, phase_role
from trackside_daemon.config.near import near_name
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.read.resources import machine_stream
from trackside_daemon.history.read.series import LogTail, LogTails, StoredSeries, find, run_streams
from trackside_daemon.history.read.summary import SUMMARIES, metrics, totals
from trackside_daemon.history.schema import LOG_BITS
from trackside_daemon.history.time_accounting import RankTime, mfu, rank_times
from trackside_daemon.model.architecture import Architecture
from trackside_daemon.model.families.rl import PHASE_ROLES
from trackside_daemon.model.records import CONTINUITY, MODEL

MACHINE = "trackside_"  # prefix of the keys of GPU and host series, which belong to the machine and not to a rank

_decode = msgspec.json.decode
_RUN = (
    "uid, name, state, cause, started, ended, (SELECT max(number) FROM attempt WHERE attempt.run = run.id), step, loss, "
    "tags, pinned, user, summary, notes"
)
_IS_FRESH = (  # nothing of it is packed, as of a run that was imported just now
    f"step IS NULL AND EXISTS (SELECT 1 FROM stream JOIN log ON log.id >= stream.id << {LOG_BITS} "  # noqa: S608
    f"AND log.id < stream.id + 1 << {LOG_BITS} WHERE stream.run = run.id)"
)
_EVENT = (
    "SELECT run.uid, run.name, event.attempt, event.rank, event.time, event.step, event.kind, event.fields "
    "FROM event JOIN run ON run.id = event.run WHERE NOT run.deleted"
)
_AMBIGUOUS = frozenset(("kl", "entropy"))  # which other trainings have as well


class UnknownRunError(HistoryError, LookupError):
    """No run has this id or name, or several ids match; the message lists candidates."""


class UnknownKeyError(HistoryError, LookupError):
    """No run that was named has this key; the message has the nearest one."""


class RunFilter(NamedTuple):
    """Conditions on runs; all of them have to hold."""

    name: str = ""  # a part of the name, or the beginning of the id
    tag: str = ""  # one of the run's tags
    state: str = ""  # the run's state
    since: float | None = None  # earliest start, in Unix seconds
    until: float | None = None  # latest start, in Unix seconds
    limit: int = 0  # number of runs, the newest first; 0 for all
    launch: str = ""  # id of the ``trackside run`` command that started it
    after: str = ""  # id of a run that precedes them in the order, the newest first


class RunSeries(NamedTuple):
    """A series of a run, or of its machine, which has no *rank* and *attempt*."""

    run: str
    attempt: int | None
    rank: int | None
    series: StoredSeries
    tail: LogTail


def runs(
    connection: sqlite3.Connection,
    wanted: RunFilter = RunFilter(),  # noqa: B008  it is frozen
    among: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the runs that a filter selects, newest first; only those *among* these ids, if given."""
    conditions = ["NOT deleted"]
    values: list[Any] = []
    if among is not None:
        conditions.append(f"uid IN ({', '.join('?' * len(among))})")
        values += among
    for condition, value in (
        ("(instr(name, ?) OR instr(uid, ?) = 1)", wanted.name),  # not LIKE, where % and _ are wildcards
        ("EXISTS (SELECT 1 FROM json_each(tags) WHERE json_each.value = ?)", wanted.tag),
        ("state = ?", wanted.state),
        ("started >= ?", wanted.since),
        ("started <= ?", wanted.until),
        ("(started, id) < (SELECT started, id FROM run WHERE uid = ?)", wanted.after),
        ("EXISTS (SELECT 1 FROM attempt WHERE run = run.id AND json_extract(about, '$.launch') = ?)", wanted.launch),
    ):
        if value not in ("", None):
            conditions.append(condition)
            values += [value] * condition.count("?")
    if wanted.after and connection.execute("SELECT 1 FROM run WHERE uid = ?", (wanted.after,)).fetchone() is None:
        raise UnknownRunError(f"run {wanted.after!r}: there is none")
    query = (
        f"SELECT {_IS_FRESH}, {_RUN} FROM run WHERE {' AND '.join(conditions)} ORDER BY started DESC, id DESC LIMIT ?"  # noqa: S608
    )
    found = []
    for is_fresh, *row in connection.execute(query, (*values, wanted.limit or -1)).fetchall():
        run = _listed(row)
        found.append({**run, **newest(connection, run["id"])} if is_fresh else run)
    return found


def newest(connection: sqlite3.Connection, uid: str) -> dict[str, Any]:
    """Return ``step`` and ``loss`` of a run, also of samples that are not packed yet.

    Raises:
        UnknownRunError: There is no run with this id.
    """
    found = totals(connection, _row(connection, uid, "id")[0])
    return {"step": found["step"], "loss": found["loss"]}


def resolve(connection: sqlite3.Connection, text: str) -> str:
    """Return the id of the run with this id, this name (the newest of them), or the only id that begins with *text*.

    Raises:
        UnknownRunError: There is no such run, or several ids begin with *text*.
    """
    by_id = "SELECT uid FROM run WHERE NOT deleted AND uid = ?"
    by_name = "SELECT uid FROM run WHERE NOT deleted AND name = ? ORDER BY started DESC, id DESC LIMIT 1"
    for query in (by_id, by_name):
        if (row := connection.execute(query, (text,)).fetchone()) is not None:
            return str(row[0])
    begin = connection.execute(
        "SELECT uid FROM run WHERE NOT deleted AND instr(uid, ?) = 1 ORDER BY started DESC LIMIT 5", (text,)
    ).fetchall()
    if len(begin) == 1 and text:
        return str(begin[0][0])
    if begin and text:
        raise UnknownRunError(f"run {text!r}: several ids begin with it: {', '.join(str(uid) for (uid,) in begin)}")
    names = connection.execute(
        "SELECT name FROM run WHERE NOT deleted GROUP BY name ORDER BY max(started) DESC LIMIT 3"
    ).fetchall()
    newest = ", ".join(str(name) for (name,) in names)
    raise UnknownRunError(
        f"run {text!r}: there is none" + (f"; newest: {newest}" if newest else "; the history has no runs yet")
    )


def run(connection: sqlite3.Connection, uid: str, limit: int = SUMMARIES, offset: int = 0) -> dict[str, Any]:
    """Return everything about a run except its samples, and where its time went: see `diagnosis.accounts.read_run`.

    Its ``metrics`` are *limit* summaries after the first *offset*, of ``series`` in all; see `summary.metrics`.

    Raises:
        UnknownRunError: There is no run with this id.
    """
    id_, times, about = _about(connection, uid)
    share = mfu(times, about["attempt_list"], time.time())
    found = metrics(connection, id_, limit, offset)
    notes = {"resumes": resumes(connection, id_), "model": _model(connection, id_)}
    notes["reinforcement"] = reinforcement(found, about["attempt_list"])
    work = {} if share is None else {"mfu": share}
    return {**about, **work, **totals(connection, id_), **notes, "metrics": found}


def resumes(connection: sqlite3.Connection, run: int) -> list[dict[str, Any]]:
    """Return the verdicts on the resumes of a run, given by its row's id, oldest first, each with its attempt."""
    # A training may have events of this kind too: they have a rank.
    query = "SELECT attempt, fields FROM event WHERE run = ? AND kind = ? AND rank IS NULL ORDER BY id"
    return [{"attempt": attempt, **json.loads(text)} for attempt, text in connection.execute(query, (run, CONTINUITY))]


def _model(connection: sqlite3.Connection, run: int) -> dict[str, Any] | None:
    """Return the architecture of the model that the run has watched last; None if it has watched none."""
    query = "SELECT fields FROM event WHERE run = ? AND kind = ? ORDER BY id DESC LIMIT 8"
    for (text,) in connection.execute(query, (run, MODEL)):
        with suppress(msgspec.DecodeError):  # another event of the training's own
            found: dict[str, Any] = msgspec.to_builtins(msgspec.json.decode(text, type=Architecture))
            return found
    return None


def head(connection: sqlite3.Connection, uid: str) -> dict[str, Any]:
    """Return a run without reading its series: step and loss are those of the packed samples.

    Raises:
        UnknownRunError: There is no run with this id.
    """
    return _about(connection, uid)[-1]


def _about(connection: sqlite3.Connection, uid: str) -> tuple[int, list[RankTime], dict[str, Any]]:
    """Return the row's id of a run, the times of its ranks, and the run without its series."""
    trimmed = "EXISTS (SELECT 1 FROM series JOIN stream ON stream.id = stream WHERE run = run.id AND series.trimmed)"
    *listed, id_, trimmed = _row(connection, uid, f"{_RUN}, id, {trimmed}")
    attempts = connection.execute(
        "SELECT number, state, cause, started, ended, config, about FROM attempt WHERE run = ? ORDER BY number", (id_,)
    )
    names = ("attempt", "state", "cause", "started", "ended")
    times = rank_times(connection, id_)
    about = {
        **_listed(listed),
        "trimmed": bool(trimmed),
        "attempt_list": [
            {
                **dict(zip(names, fields, strict=True)),
                "config": json.loads(config) if config else None,
                **json.loads(facts),
                **_measured([time for time in times if time.attempt == fields[0]]),
            }
            for *fields, config, facts in attempts
        ],
    }
    return id_, times, about


def _measured(ranks: Sequence[RankTime]) -> dict[str, dict[str, Any]]:
    """Return phases and step time of ranks, each by rank; without those that no rank has."""
    found: dict[str, dict[str, Any]] = {}
    for rank in ranks:
        for name in ("phases", "step_seconds"):
            if value := getattr(rank, name):
                found.setdefault(name, {})[str(rank.rank)] = value
    return found


def events(connection: sqlite3.Connection, uid: str = "", limit: int = 1000) -> list[dict[str, Any]]:
    """Return the newest events of one run, or of all, oldest first."""
    of_run = "AND event.run = (SELECT id FROM run WHERE uid = :uid)" if uid else ""  # an OR would have no index
    query = f"{_EVENT} {of_run} ORDER BY event.id DESC LIMIT :limit"
    rows = connection.execute(query, {"uid": uid, "limit": limit}).fetchall()
    return [_event_json(row) for row in reversed(rows)]


def launch(connection: sqlite3.Connection, uid: str) -> str:
    """Return the id of the ``trackside run`` command that started the newest attempt of a run; empty for none."""
    query = "SELECT json_extract(about, '$.launch') FROM attempt WHERE run = (SELECT id FROM run WHERE uid = ?) ORDER BY id DESC LIMIT 1"
    row = connection.execute(query, (uid,)).fetchone()
    return str((row and row[0]) or "")


def event(connection: sqlite3.Connection, number: int) -> dict[str, Any] | None:
    """Return an event by its id; None if there is none."""
    row = connection.execute(f"{_EVENT} AND event.id = ?", (number,)).fetchone()
    return None if row is None else _event_json(row)


def _event_json(row: Sequence[Any]) -> dict[str, Any]:
    *values, fields = row
    names = ("run", "name", "attempt", "rank", "time", "step", "kind")
    return {**dict(zip(names, values, strict=True)), "fields": json.loads(fields)}


def series(
    connection: sqlite3.Connection,
    uid: str,
    keys: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
    attempt: int | None = None,
    *,
    tails: LogTails | None = None,
) -> Iterator[RunSeries]:
    """Yield the series of a run, by attempt and rank; there may be a million.

    Args:
        connection: In a transaction.
        uid: The run's id.
        keys: Only these; None for all that the ranks pushed. Keys that begin with `MACHINE` are series of the machine:
            a series as on ``/metrics``, or the name of a family for all its series.
        ranks: Only these; None for the lowest, empty for all.
        attempt: Only this one; None for all.
        tails: Logs that are read already, and get those that are not.
    """
    tails = LogTails(connection) if tails is None else tails
    streams = run_streams(connection, uid, attempt)
    if ranks is None:
        lowest = {number: rank for _, number, rank in reversed(streams)}
        streams = [row for row in streams if row[2] == lowest[row[1]]]
    elif ranks:
        streams = [row for row in streams if row[2] in ranks]
    pushed = None if keys is None else [key for key in keys if not key.startswith(MACHINE)]
    for stream, number, rank in streams:
        tail = tails[stream]
        for one in find(connection, stream, tail, pushed):
            yield RunSeries(uid, number, rank, one, tail)
    if wanted := {key for key in keys or () if key.startswith(MACHINE)}:
        every = _machine(connection, uid)
        yield from (one for one in every if {one.series.key, one.series.key.partition("{")[0]} & wanted)


def check_keys(
    connection: sqlite3.Connection, uids: Collection[str], wanted: Iterable[str], found: Iterable[RunSeries]
) -> None:
    """Raise an error if a wanted key is neither found nor in another rank or attempt of these runs: it may be mistyped.

    Raises:
        UnknownKeyError: There is such a key.
    """
    known = {name for one in found for name in (one.series.key, one.series.key.partition("{")[0])}
    missing = [key for key in wanted if key not in known]
    if not missing or not uids:
        return
    for uid in uids:
        every = (*series(connection, uid, ranks=()), *_machine(connection, uid))
        known.update(one.series.key.partition("{")[0] if one.rank is None else one.series.key for one in every)
    for key in missing:
        if key not in known:
            runs = f"run {next(iter(uids))!r} has no such key" if len(uids) == 1 else "no run of these has it"
            raise UnknownKeyError(f"key {key!r}: {runs}{near_name(key, known)}")


def lowest_streams(connection: sqlite3.Connection, uid: str) -> dict[int, int]:
    """Return the stream of the lowest rank of each attempt of a run, by attempt."""
    lowest: dict[int, int] = {}
    for stream, attempt, _ in run_streams(connection, uid):
        lowest.setdefault(attempt, stream)
    return lowest


def span(connection: sqlite3.Connection, uid: str) -> tuple[float, float | None]:
    """Return start and end of a run, the end None while it lives.

    Raises:
        UnknownRunError: There is no run with this id.
    """
    started, ended = _row(connection, uid, "started, ended")
    return float(started), ended


def _row(connection: sqlite3.Connection, uid: str, columns: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = connection.execute(
        f"SELECT {columns} FROM run WHERE uid = ? AND NOT deleted",  # noqa: S608
        (uid,),
    ).fetchone()
    if row is None:
        raise UnknownRunError(f"run {uid!r}: there is none")
    return row


def _machine(connection: sqlite3.Connection, uid: str) -> list[RunSeries]:
    stream = machine_stream(connection, uid)
    if stream is None:
        return []
    tail = LogTail(connection, stream)
    return [RunSeries(uid, None, None, series, tail) for series in find(connection, stream, tail)]


def _listed(row: Sequence[Any]) -> dict[str, Any]:
    uid, name, state, cause, started, ended, attempt, step, loss, tags, pinned, user, summary, notes = row
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
        "user": user,
        "summary": {} if summary == "{}" else json.loads(summary),  # most have none, and a list may have 10,000
        "notes": notes,
    }


def reinforcement(metrics: Iterable[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what a run has of reinforcement learning; None for another training.

    Args:
        metrics: Summaries of its keys.
        attempts: Its attempts, with phases.

    Returns:
        ``quantities``: the key of each and the factor of its values; ``roles``: seconds by what the ranks did, from their
        phases, or from the times that the framework pushed.
    """
    found: dict[str, tuple[str, Meaning]] = {}
    pushed: Counter[str] = Counter()
    for one in metrics:
        known = meaning(one["key"])
        if known is None:
            continue
        if known.quantity in KEYS:
            best = found.get(known.quantity)
            if best is None or known.preference < best[1].preference:
                found[known.quantity] = one["key"], known
        elif known.quantity in PHASE_ROLES and isinstance(one["mean"], float):
            pushed[PHASE_ROLES[known.quantity]] += one["mean"] * (one["count"] - one["nonfinite"])
    if found.keys() <= _AMBIGUOUS:
        return None
    quantities = {
        name: {"key": key, "factor": of.factor} for name in KEYS if name in found for key, of in [found[name]]
    }
    return {"quantities": quantities, "roles": _roles(attempts) or dict(pushed)}


def _roles(attempts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of all ranks by role; none if no phase generates."""
    seconds: Counter[str] = Counter()
    for attempt in attempts:
        for phases in attempt.get("phases", {}).values():
            for phase, spent in phases.items():
                if role := phase_role(phase):
                    seconds[role] += spent
    return dict(seconds.most_common()) if seconds["generate"] else {}
