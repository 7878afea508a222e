"""Append the committed records as JSON lines, for other tools (``--storage.jsonl``).

There is a folder per run and a file per kind: ``RUN/samples.jsonl``, ``runs.jsonl``, ``events.jsonl`` and
``alerts.jsonl``; ``host/`` has the lines of the machine. A full file becomes ``samples.1.jsonl``, the next one
``samples.2.jsonl``, and so on: the file without a number is the newest, followed by the highest number. Of a kind of a run,
the newest `KEPT` full files are kept. ``host/gpu_metrics_YYYYMMDD.jsonl`` has a flat line for each GPU and time, with the
time in RFC 3339; the last `DAYS` days are kept. No file is synced: after a power cut, the history is the copy that is
complete.

Other times are Unix seconds with microseconds; NaN and infinities are the texts ``nan``, ``inf`` and ``-inf``.
"""

import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from trackside.wire import Hello
from trackside_daemon.history.directory import make_private, writable_directory
from trackside_daemon.history.series_name import series_labels
from trackside_daemon.model.capture import Capture
from trackside_daemon.model.checkpoint import Checkpoint, as_json
from trackside_daemon.model.families import gpu
from trackside_daemon.model.metric import json_value
from trackside_daemon.model.records import (
    Alert,
    AlertNote,
    BatchIngested,
    Event,
    MachineSample,
    Record,
    RunState,
    SessionOpened,
    Silence,
)
from trackside_daemon.model.session import RankRef
from trackside_daemon.model.text import rfc3339

OPTION = "--storage.jsonl"
HOST = "host"
GPU = gpu.UTILIZATION.name.removesuffix("utilization_ratio")  # begins the names of all families of GPUs
ROTATE_BYTES = 256 * 1024 * 1024
KEPT = 16
DAYS = 31
OPEN_FILES = 64
SESSIONS = 16_384  # sessions to remember, those used last; each takes some 200 bytes

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_HASHED = re.compile(r".*-[0-9a-f]{16}")

_encode = msgspec.json.Encoder().encode


class RotatingFiles:
    """Files of whole lines in a directory.

    Args:
        directory: An existing directory.
        rotate_bytes: Largest size of a file; a single line may be longer.
        limit: Number of files that stay open, those used last.
    """

    def __init__(self, directory: Path, rotate_bytes: int, limit: int) -> None:
        self._directory = directory
        self._rotate_bytes = rotate_bytes
        self._limit = limit
        self._open: OrderedDict[str, int] = OrderedDict()

    def append(self, name: str, lines: Sequence[bytes]) -> None:
        """Append whole lines to a file, named by folder and kind.

        Raises:
            OSError: A write failed; the last file then has none of the lines that belong into it.
        """
        size = self._size(name)
        chunk: list[bytes] = []
        for line in lines:
            if size and size + len(line) > self._rotate_bytes:
                self._write(name, chunk)
                self._rotate(name)
                size = self._size(name)
                chunk = []
            chunk.append(line)
            size += len(line)
        self._write(name, chunk)

    def close(self) -> None:
        """Close all files; a later `append` opens its file again."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _path(self, name: str, number: int = 0) -> Path:
        return self._directory / (f"{name}.{number}.jsonl" if number else f"{name}.jsonl")

    def _size(self, name: str) -> int:
        """Return the size of a file in bytes; open it if it is closed or was deleted."""
        file = self._open.get(name)
        if file is not None:
            status = os.fstat(file)
            if status.st_nlink:  # none once the file was deleted
                self._open.move_to_end(name)
                return status.st_size
            self._close_file(name)
        while len(self._open) >= self._limit:
            os.close(self._open.popitem(last=False)[1])
        self._open[name] = file = self._open_file(self._path(name))
        return os.fstat(file).st_size

    @staticmethod
    def _open_file(path: Path) -> int:
        make_private(path.parent)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":  # incomplete after a crash: begin a new line
                os.write(file, b"\n")
        except OSError:
            os.close(file)
            raise
        return file

    def _write(self, name: str, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        file = self._open[name]
        before = os.fstat(file).st_size
        rest = memoryview(b"".join(lines))
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError as error:
            self._undo(name, before)
            error.filename = str(self._path(name))  # the error of a write has none
            raise

    def _undo(self, name: str, size: int) -> None:
        with suppress(OSError):  # the line stays incomplete; the next open ends it
            os.ftruncate(self._open[name], size)
        self._close_file(name)

    def _rotate(self, name: str) -> None:
        self._close_file(name)
        path = self._path(name)
        numbered = re.compile(rf"{re.escape(path.stem)}\.(\d{{1,18}})\.jsonl", re.ASCII)
        rotated = (numbered.fullmatch(entry.name) for entry in path.parent.iterdir())
        numbers = sorted(int(match[1]) for match in rotated if match)
        path.rename(self._path(name, 1 + max(numbers, default=0)))
        for number in numbers[: max(0, len(numbers) + 1 - KEPT)]:
            self._path(name, number).unlink(missing_ok=True)

    def keep_newest(self, parent: str, pattern: str, most: int) -> None:
        """Delete files of a folder whose names have a day, except those of the newest days."""
        found = [
            (match[1], path)
            for path in (self._directory / parent).iterdir()
            if (match := re.fullmatch(pattern, path.name))
        ]
        days = sorted({day for day, _ in found})[-most:]
        for day, path in found:
            if day not in days:
                path.unlink(missing_ok=True)

    def _close_file(self, name: str) -> None:
        os.close(self._open.pop(name))


class JsonLines:
    """Appends records to files in a directory.

    Args:
        directory: Created if it is missing.
        rotate_bytes: Largest size of a file; a single line may be longer.
        open_files: Number of files that stay open, those used last.

    Raises:
        HistoryError: The directory cannot be created or written.
    """

    def __init__(self, directory: Path, rotate_bytes: int = ROTATE_BYTES, open_files: int = OPEN_FILES) -> None:
        self._files = RotatingFiles(writable_directory(directory, OPTION, make=True), rotate_bytes, open_files)
        self._sessions: OrderedDict[bytes, RankRef] = OrderedDict()
        self._day = ""

    def write(self, records: Iterable[Record]) -> None:
        """Append committed records in their order.

        Raises:
            OSError: The first failure; the file that failed has none of its lines, the other files have theirs.
        """
        lines: dict[tuple[str, str], list[bytes]] = {}
        for record in records:
            if isinstance(record, MachineSample) and (by_gpu := list(_gpu_lines(record))):
                day = rfc3339(record.time)[:10].replace("-", "")
                lines.setdefault((HOST, f"gpu_metrics_{day}"), []).extend(by_gpu)
            run, kind, written = self._lines(record)
            if written:
                lines.setdefault((HOST if run is None else folder(run), kind), []).extend(written)
        failure = None
        for (parent, kind), batch in lines.items():
            try:
                self._files.append(f"{parent}/{kind}", batch)
            except OSError as error:
                failure = failure or error
        days = {kind for parent, kind in lines if parent == HOST and kind.startswith("gpu_metrics_")}
        if days and max(days) != self._day:
            self._day = max(days)
            self._files.keep_newest(HOST, r"gpu_metrics_(\d{8})(?:\.\d+)?\.jsonl", DAYS)
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Close the files; a later write opens them again."""
        self._files.close()

    def _lines(self, record: Record) -> tuple[str | None, str, list[bytes]]:
        """Return the run of a record, or None for the machine; the kind of its file; its lines."""
        if isinstance(record, BatchIngested):
            return record.session.run, "samples", list(_rows(record))
        if isinstance(record, SessionOpened):
            return record.hello.identity.run, "runs", self._run_lines(record)
        if isinstance(record, Capture):
            return record.run, "captures", [_line(msgspec.to_builtins(record))]
        if isinstance(record, Checkpoint):
            return record.run, "checkpoints", [_line(as_json(record))]
        run, (kind, names) = getattr(record, "run", "") or None, _FIELDS.get(type(record), ("", ""))
        return run, kind, [_line(_fields(record, names))] if kind else []

    def _run_lines(self, record: SessionOpened) -> list[bytes]:
        """Return a line if the session is new: a client sends hello again after each reconnect."""
        session = record.session
        rank = RankRef(session.run, session.attempt, session.rank)
        before = self._sessions.pop(session.id, None)
        self._sessions[session.id] = rank
        while len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        return [] if before == rank else [_line(_run(record, record.hello))]


def folder(run: str) -> str:
    """Return a run's id as a single path component, which no other id has, nor `HOST`."""
    # An unchanged id has no hash at its end; a changed one, or one that looks as if it were changed, has. Two ids with
    # the same folder would share 64 bits of SHA-256.
    if _PLAIN.fullmatch(run) and not _HASHED.fullmatch(run) and run != HOST:
        return run
    shown = re.sub(r"[^A-Za-z0-9_.-]", "_", run[:80]).lstrip(".-") or "run"
    return f"{shown}-{hashlib.sha256(run.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def named_folder(name: str, run: str) -> str:
    """Return a name of letters, digits and ``_.=+-`` with a run's id behind it as a path component, which no other id has."""
    id_ = folder(run)
    return f"{name}{'@' if '-' in id_ else '-'}{id_}"  # of a-b-c, any part could be the name


# The kind of the file and the fields of records that are written as they are. Accounts are renewed every few seconds: too much
# for a log.
_FIELDS: dict[type, tuple[str, str]] = {
    RunState: ("runs", "run attempt state cause ended"),
    Event: ("events", "run attempt rank step time kind fields"),
    Alert: ("alerts", "alert severity run labels started ended summary description evidence"),
    AlertNote: ("alerts", "alert run labels started evidence notified"),
    Silence: ("silences", "id labels started until comment"),
    MachineSample: ("samples", "time values"),
}
_TIMES = frozenset(("time", "started", "ended", "until"))


def _fields(record: object, names: str) -> dict[str, Any]:
    """Return the fields of a record with these names, its times rounded to microseconds."""
    values = {name: getattr(record, name) for name in names.split()}
    if (notified := values.get("notified")) is not None:
        values["notified"] = {sink: one._asdict() for sink, one in notified.items()}
    return {name: round(value, 6) if name in _TIMES and value is not None else value for name, value in values.items()}


def _run(record: SessionOpened, hello: Hello) -> dict[str, Any]:
    identity, about = hello.identity, hello.about
    line: dict[str, Any] = {
        "run": identity.run,
        "name": record.session.name,
        "attempt": record.session.attempt,
        **_fields(identity, "rank"),
        **_fields(record, "time"),
        "started": _microseconds(hello.started),
        "clock_offset": record.offset,
        **_fields(identity, "world host pid gpus job_id git_commit framework"),
        **_fields(hello, "tags total_steps"),
        "config": json.loads(hello.config) if hello.config else None,
    }
    return line if about is None else line | _fields(about, "git_dirty command directory python platform packages")


def _gpu_lines(record: MachineSample) -> Iterator[bytes]:
    """Yield a flat line for each GPU: its values by their families without ``trackside_gpu_``, and further labels behind."""
    gpus: dict[str, dict[str, Any]] = {}
    for name, value in record.values.items():
        family = name.partition("{")[0]
        if not family.startswith(GPU) or family.endswith("_info"):
            continue
        labels = series_labels(name)
        index = labels.pop("gpu", "")
        uuid = labels.pop("uuid", "")
        if index and not labels.keys() & {"pid", "run", "rank"}:
            first = {
                "timestamp": rfc3339(record.time),
                "gpu_index": int(index) if index.isdigit() else index,
                "uuid": uuid,
            }
            gpus.setdefault(index, first)["_".join((family.removeprefix(GPU), *labels.values()))] = value
    return map(_line, gpus.values())


def _rows(record: BatchIngested) -> Iterator[bytes]:
    for keys, steps, times, values, _ in record.columns:
        width = len(keys)
        for row, (step, time) in enumerate(zip(steps, times, strict=True)):
            pushed = values[row * width : (row + 1) * width]
            line = {
                "attempt": record.session.attempt,
                "rank": record.session.rank,
                "step": step,
                "time": _microseconds(time + record.shift),
                "values": dict(zip(keys, pushed, strict=True)),
            }
            # The sum is finite only if all terms are. Finite terms may overflow; that costs time, no correctness.
            yield _encode(line) + b"\n" if isfinite(sum(pushed)) else _line(line)


def _line(fields: Mapping[str, Any]) -> bytes:
    try:
        return _encode(json_value(fields)) + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can write in JSON
        return json.dumps(json_value(fields)).encode() + b"\n"


def _microseconds(nanoseconds: int) -> float:
    """Return Unix seconds, rounded to microseconds: a float cannot hold the nanoseconds."""
    return (nanoseconds + 500) // 1000 / 1_000_000
