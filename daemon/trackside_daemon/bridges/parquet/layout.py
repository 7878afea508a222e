"""Columns of the files of runs, and their places: names, the parts of a run that one history has, and what a reader leaves out.

A file is ``KIND/date=DATE/name=NAME/RUN@PART.NUMBER.parquet``. Everything between the kind and the suffix is its place: the
three kinds of one writing of a run have the same. The histories of several machines may have ranks of one run, each as a
part of its own, named by host and digest of the sessions, since a session pushes to one daemon. No file is ever replaced,
as readers may have read its footer: a run that goes on is written with the next number, and then the files before are
deleted. Versions before had no ``@PART.NUMBER``, and no sessions in the footers.

The columns are of version 1; docs/fleet.md describes them. Only ever append columns.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from trackside_daemon.bridges.parquet.store import SUFFIX, FileError
from trackside_daemon.history.files.jsonl import folder
from trackside_daemon.history.frames.optional_library import library

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

    from trackside_daemon.bridges.mirrors.target import MirroredRun
    from trackside_daemon.bridges.parquet.store import FileStore

STAMP = b"trackside.end"  # entries of a file's footer: the end of the run that it has
SESSIONS = b"trackside.sessions"  # the sessions whose samples it has
# In the footer of runs, the number of rows of the other kinds; -1 for no file.
ROWS = {"samples": b"trackside.samples", "alerts": b"trackside.alerts"}
LOST = b"trackside.lost"  # in runs: the number of samples that the history had deleted before

NAME_BYTES = 240  # a file system allows 255 for a folder, with name=
_DIGEST = 8
_LATEST = 253_402_300_799.0  # the last second of the year 9999, which is the last that dates have


class Origin(NamedTuple):
    """The origin of a run in a history."""

    sessions: frozenset[bytes]  # digests of the sessions that pushed to it; empty for an imported run
    hosts: frozenset[str | None]  # the hosts of its attempts
    starts: tuple[float, ...]  # Unix times of the starts of its attempts

    def encoded_sessions(self) -> bytes:
        """Return the sessions as an entry of a footer."""
        return b64encode(b"".join(sorted(self.sessions)))


def origin(connection: sqlite3.Connection, uid: str) -> Origin:
    """Return the origin of a run in a history."""
    sessions = connection.execute(
        "SELECT session.id FROM session JOIN stream ON stream.id = stream JOIN run ON run.id = run WHERE uid = ? AND NOT imported",
        (uid,),
    )
    attempts = connection.execute(
        "SELECT attempt.started, about FROM attempt JOIN run ON run.id = run WHERE uid = ?", (uid,)
    ).fetchall()
    return Origin(
        frozenset(blake2b(id_, digest_size=_DIGEST).digest() for (id_,) in sessions),
        frozenset(json.loads(about).get("host") for _, about in attempts),
        tuple(started for started, _ in attempts),
    )


def sessions(footer: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """Return the digests of the sessions that a footer has; none of an imported run, nor of a version before."""
    try:
        digests = b64decode(footer.get(SESSIONS, b""), validate=True)
    except ValueError:
        return frozenset()
    return frozenset(digests[begin : begin + _DIGEST] for begin in range(0, len(digests), _DIGEST))


def is_of(store: FileStore, place: str, footer: Mapping[bytes, bytes], of: Origin, stamp: bytes) -> bool:
    """Return whether files have a run from this history, as it is or was, and not from another machine's.

    Args:
        store: Their store.
        place: Their place.
        footer: The entries of their footers; empty if nothing can be read.
        of: The origin of the run in this history.
        stamp: The entry for the end of the run as it is.
    """
    stored = sessions(footer)
    if stored and of.sessions:  # one has more if the run went on, or if this history is a copy from before
        return stored <= of.sessions or of.sessions <= stored
    if "@" in place and not footer:
        return False
    try:
        row = facts(store, place)
    except FileError:  # of a version before, which replaced it, whosever it was
        return True
    # If the run was deleted here and then went on, this history has only what came then.
    begins = min(of.starts, default=0.0) - 1.0
    return footer.get(STAMP) == stamp or (row.host in of.hosts and row.started is not None and row.started > begins)


class RunPlace(NamedTuple):
    """The host of a run, and its start and end in Unix seconds."""

    host: str | None
    started: float | None
    ended: float | None


def facts(store: FileStore, place: str) -> RunPlace:
    """Return some columns of the row of a run.

    Raises:
        FileError: It cannot be read.
    """
    with store.open(f"runs/{place}{SUFFIX}") as file:
        row = file.read(columns=["host", "started", "ended"])
        (host,) = row["host"].to_pylist()
        # As integers: Python has dates for the years to 9999 alone.
        times = (time for name in ("started", "ended") for time in row[name].cast("int64").to_pylist())
        return RunPlace(host, *(None if time is None else time / 1e6 for time in times))


def new_place(run: MirroredRun, of: Origin, before: Iterable[str]) -> str:
    """Return the place for a run that may have files at places *before*."""
    parts = [split(place) for place in before]
    host = min((host for host in of.hosts if host), default="")
    digest = blake2b(of.encoded_sessions() or f"{host} {run.started}".encode("utf-8", "replace"), digest_size=4)
    own = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', host)[:40]}-{digest.hexdigest()}"
    part = next((part.name for part in parts if part.name), own)
    name = run.name[:80]
    while len(quoted := quote(name, safe="", errors="replace")) > NAME_BYTES:
        name = name[:-1]
    partition = quoted or "__HIVE_DEFAULT_PARTITION__"
    number = max((part.number for part in parts), default=0) + 1
    return f"date={_date(run.started)}/name={partition}/{folder(run.id)}@{part}.{number}"


class PartName(NamedTuple):
    """The name of a file: the `folder` of its run, the part, and the number; "" and 0 in a version before."""

    run: str
    name: str
    number: int


def split(place: str) -> PartName:
    """Return the parts of the name of a place."""
    run, _, rest = place.rpartition("/")[2].partition("@")
    part, _, number = rest.rpartition(".")
    return PartName(run, part, int(number) if number.isdecimal() else 0)


def superseded(store: FileStore, places: Iterable[str]) -> set[str]:
    """Return places of rows that were written anew elsewhere, until their writer or the next one deletes them."""
    by_run: dict[str, list[str]] = {}
    for place in places:
        by_run.setdefault(split(place).run, []).append(place)
    old: set[str] = set()
    for some in by_run.values():
        by_part: dict[str | None, list[tuple[float, int, str]]] = {}
        by_host = not all(split(place).name for place in some)  # versions before also left rows of other names behind
        for place in some if len(some) > 1 else ():
            _, part, number = split(place)
            with suppress(FileError):  # the reader of the row names it
                row = facts(store, place) if by_host else RunPlace(part, None, None)
                by_part.setdefault(row.host, []).append((row.ended or 0.0, number, place))
        old |= {place for rows in by_part.values() for *_, place in sorted(rows)[:-1]}
    return old


def place_of(name: str) -> str:
    """Return the place of a file."""
    return name.partition("/")[2].removesuffix(SUFFIX)


def dates(starts: Iterable[float]) -> set[str]:
    """Return the dates at which a run may lie: a late session moves a start back, also over midnight."""
    return {_date(started + after) for started in starts for after in (0.0, 86_400.0)}


def _date(started: float) -> str:
    seconds = min(max(started, -62_135_596_800.0), _LATEST)  # of the year 1
    return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)).strftime("%Y-%m-%d")


VERSION = 1


def schemas() -> dict[str, Any]:
    """Return the ``pyarrow.Schema`` of each kind of file."""
    arrow = library("pyarrow")
    text, number, integer = arrow.string(), arrow.float64(), arrow.int64()
    moment = arrow.timestamp("us", "UTC")
    cause = arrow.struct([("cause", text), ("summary", text), ("lost_seconds", number), ("gpu_hours", number)])
    fields = {
        "runs": {
            "version": arrow.int32(),
            "run": text,
            "name": text,
            "user": text,
            "host": text,
            "state": text,
            "cause": text,
            "started": moment,
            "ended": moment,
            "attempts": arrow.int32(),
            "ranks": arrow.int32(),
            "step": integer,
            "loss": number,
            "tags": arrow.list_(text),
            "config": text,
            "summary": text,
            "git_commit": text,
            "framework": text,
            "wall_seconds": number,
            "gpu_hours": number,
            "lost_gpu_hours": number,
            "energy_kwh": number,
            "ledger": arrow.map_(text, number),
            "causes": arrow.list_(cause),
        },
        "samples": {
            "run": text,
            "attempt": arrow.int32(),
            "rank": arrow.int32(),
            "key": text,
            "step": integer,
            "time": moment,
            "value": number,
        },
        "alerts": {
            "run": text,
            "alert": text,
            "severity": text,
            "started": moment,
            "ended": moment,
            "summary": text,
            "description": text,
            "labels": text,
        },
    }
    return {kind: arrow.schema(list(columns.items())) for kind, columns in fields.items()}
