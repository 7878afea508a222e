"""What was committed, also as JSON lines, for those who work on it with their own tools (``--storage.jsonl``).

A folder a run, a file a kind: ``RUN/samples.jsonl``, ``runs.jsonl``, ``events.jsonl``, ``alerts.jsonl``; ``host/`` has
what is about the machine. A file that is full becomes ``samples.1.jsonl``, the next ``samples.2.jsonl`` and so on: the
one without a number is the newest, then comes the highest number. Nothing is ever deleted here, and nothing is synced:
the history is the copy that a power cut spares.

Times are Unix seconds to the microsecond; NaN and infinities are the texts ``nan``, ``inf`` and ``-inf``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trackside_daemon.history.directory import writable_directory
from trackside_daemon.history.files.rotation import Files
from trackside_daemon.model.records import (
    AccountUpdated,
    Alert,
    AlertNote,
    BatchIngested,
    Event,
    MachineSample,
    RunState,
    SessionOpened,
    Silence,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from trackside.wire import Hello
    from trackside_daemon.model.records import Record

OPTION = "--storage.jsonl"
HOST = "host"
ROTATE_BYTES = 256 * 1024 * 1024
OPEN_FILES = 64
SESSIONS = 16_384
"""How many sessions are remembered, the latest heard of; one is some 200 bytes."""

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_HASHED = re.compile(r".*-[0-9a-f]{16}")

_encode = msgspec.json.Encoder().encode


class _Who(NamedTuple):
    run: str
    attempt: int
    rank: int


class JsonLines:
    """Appends records to files below a directory.

    Args:
        directory: Made when it is missing.
        rotate_bytes: No file gets larger, unless by a single line.
        open_files: So many are kept open, those used last.

    Raises:
        HistoryError: The directory cannot be made or written.
    """

    def __init__(self, directory: Path, rotate_bytes: int = ROTATE_BYTES, open_files: int = OPEN_FILES) -> None:
        self._files = Files(writable_directory(directory, OPTION, make=True), rotate_bytes, open_files)
        self._sessions: OrderedDict[bytes, _Who] = OrderedDict()

    def write(self, records: Iterable[Record]) -> None:
        """Append what was committed, in its order.

        Raises:
            OSError: The first failure; what the file that failed was to get is not in it, the others have theirs.
        """
        lines: dict[tuple[str, str], list[bytes]] = {}
        for record in records:
            run, kind, written = self._lines(record)
            if written:
                lines.setdefault((HOST if run is None else folder(run), kind), []).extend(written)
        failure = None
        for (parent, kind), batch in lines.items():
            try:
                self._files.append(f"{parent}/{kind}", batch)
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Let go of the files. A later write opens them again."""
        self._files.close()

    def _lines(self, record: Record) -> tuple[str | None, str, list[bytes]]:  # noqa: PLR0911  one for each kind
        """The run that a record is about, or None for the machine; the kind of its file; its lines."""
        if isinstance(record, BatchIngested):
            who = self._who(record.session)
            return who.run, "samples", list(_rows(who, record))
        if isinstance(record, SessionOpened):
            return record.hello.identity.run, "runs", self._opened(record)
        if isinstance(record, RunState):
            return record.run, "runs", [_line(_standing(record))]
        if isinstance(record, Event):
            return record.run, "events", [_line(_event(record))]
        if isinstance(record, Alert | AlertNote):
            told = _alert(record) if isinstance(record, Alert) else _note(record)
            return record.run or None, "alerts", [_line(told)]
        if isinstance(record, Silence):
            return None, "silences", [_line(_silence(record))]
        if isinstance(record, AccountUpdated):
            return record.run, "", []  # it is renewed each few seconds, and no news
        return None, "samples", [_line(_sampled(record))]

    def _opened(self, record: SessionOpened) -> list[bytes]:
        """A line for a session that is new; a client says hello again whenever its connection does."""
        identity = record.hello.identity
        who = _Who(identity.run, record.attempt, identity.rank)
        known = self._sessions.pop(record.session, None)
        self._sessions[record.session] = who
        while len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        return [] if known == who else [_line(_run(record, record.hello))]

    def _who(self, session: bytes) -> _Who:
        """Whose session it is; one that was never opened, which should not be, is a run of its own rather than lost."""
        who = self._sessions.get(session)
        if who is None:
            return _Who(f"session-{session.hex()}", 0, 0)
        self._sessions.move_to_end(session)
        return who


def folder(run: str) -> str:
    """A run's id as one component of a path, never that of another id, nor `HOST`.

    What is not altered has no hash at its end; what is altered, or looks as if it was, has: the ids that share a name
    would have to share 64 bits of SHA-256.
    """
    if _PLAIN.fullmatch(run) and not _HASHED.fullmatch(run) and run != HOST:
        return run
    shown = re.sub(r"[^A-Za-z0-9_.-]", "_", run[:80]).lstrip(".-") or "run"
    return f"{shown}-{hashlib.sha256(run.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _run(record: SessionOpened, hello: Hello) -> dict[str, Any]:
    identity, about = hello.identity, hello.about
    line: dict[str, Any] = {
        "run": identity.run,
        "name": record.name,
        "attempt": record.attempt,
        "rank": identity.rank,
        "time": _moment(record.time),
        "started": _microseconds(hello.started),
        "clock_offset": record.offset,
        "world": identity.world,
        "host": identity.host,
        "pid": identity.pid,
        "gpus": identity.gpus,
        "job_id": identity.job_id,
        "git_commit": identity.git_commit,
        "framework": identity.framework,
        "tags": hello.tags,
        "total_steps": hello.total_steps,
        "config": json.loads(hello.config) if hello.config else None,
    }
    if about is not None:
        line |= {"git_dirty": about.git_dirty, "command": about.command}
        line |= {"directory": about.directory, "python": about.python, "platform": about.platform}
        line |= {"packages": about.packages}
    return line


def _standing(record: RunState) -> dict[str, Any]:
    ended = None if record.ended is None else _moment(record.ended)
    line = {"run": record.run, "attempt": record.attempt, "state": record.state, "cause": record.cause}
    return {**line, "ended": ended}


def _event(record: Event) -> dict[str, Any]:
    return {
        "run": record.run,
        "attempt": record.attempt,
        "rank": record.rank,
        "step": record.step,
        "time": _moment(record.time),
        "kind": record.kind,
        "fields": dict(record.fields),
    }


def _alert(record: Alert) -> dict[str, Any]:
    ended = None if record.ended is None else _moment(record.ended)
    return {
        "alert": record.alert,
        "severity": record.severity,
        "run": record.run,
        "labels": dict(record.labels),
        "started": _moment(record.started),
        "ended": ended,
        "summary": record.summary,
        "description": record.description,
        "evidence": dict(record.evidence),
    }


def _note(record: AlertNote) -> dict[str, Any]:
    return {
        "alert": record.alert,
        "run": record.run,
        "labels": dict(record.labels),
        "started": _moment(record.started),
        "evidence": dict(record.evidence),
        "notified": {sink: one._asdict() for sink, one in record.notified.items()},
    }


def _silence(record: Silence) -> dict[str, Any]:
    return {
        "id": record.id,
        "labels": dict(record.labels),
        "started": _moment(record.started),
        "until": _moment(record.until),
        "comment": record.comment,
    }


def _sampled(record: MachineSample) -> dict[str, Any]:
    return {"time": _moment(record.time), "values": record.values}


def _rows(who: _Who, record: BatchIngested) -> Iterator[bytes]:
    for block in record.blocks:
        steps, times, values = block.columns()
        width = len(block.keys)
        for row, (step, time) in enumerate(zip(steps, times, strict=True)):
            pushed = values[row * width : (row + 1) * width]
            line = {
                "attempt": who.attempt,
                "rank": who.rank,
                "step": step,
                "time": _microseconds(time + record.shift),
                "values": dict(zip(block.keys, pushed, strict=True)),
            }
            # A sum is finite only when all of its terms are; of finite terms it may still overflow, which costs time.
            yield _encode(line) + b"\n" if isfinite(sum(pushed)) else _line(line)


def _line(fields: Mapping[str, Any]) -> bytes:
    try:
        return _encode(_plain(fields)) + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can write
        return json.dumps(_plain(fields)).encode() + b"\n"


def _plain(value: Any) -> Any:
    """*value* with its NaN and infinities as texts: JSON has none, and msgspec would write null."""
    if isinstance(value, float):
        return value if isfinite(value) else str(float(value))
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _moment(seconds: float) -> float:
    return round(seconds, 6)


def _microseconds(nanoseconds: int) -> float:
    """Unix seconds; by whole microseconds, since a float cannot hold the nanoseconds."""
    return (nanoseconds + 500) // 1000 / 1_000_000
