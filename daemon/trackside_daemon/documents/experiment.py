"""The directory of a run for its user, below ``storage.experiment-directory``: report, plots, metrics, configuration, results.

RUN/report.html, config.json, results.json, logs/metrics.jsonl, and visualizations/ with plots, images of the run, and
training_dynamics_step_N.png. Each file appears when it is complete, and metrics.jsonl grows by whole lines; a run's directory has at
most some hundred files.
"""

from __future__ import annotations

import json
import os
import re
import resource
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from errno import ENOSPC
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from trackside_daemon.bridges.mirrors.unsent import RankStream, streams, unsent
from trackside_daemon.documents import plots, report, run
from trackside_daemon.documents.html import write as written
from trackside_daemon.history.files.jsonl import folder, named_folder
from trackside_daemon.history.files.selection import count_of
from trackside_daemon.history.read.series import LogTail, Readable, Window, find
from trackside_daemon.model.metric import json_value

ROWS = 100_000  # most lines of metrics.jsonl, the newest steps
VALUES = 10_000_000  # most values of these lines, if each has every key: some 10 seconds of a processor
CHARTS = 24  # most charts that are drawn, the loss first
DYNAMICS = 4  # of them in training_dynamics_step_N.png
DYNAMICS_FILES = 20  # most of these, the newest
METRICS, WRITTEN = "metrics.jsonl", ".metrics.json"
WRITTEN_BYTES = 16_000_000
GROUP = 4096  # most keys whose places are noted, so that a report of a run with more begins anew
AT_ONCE = 20_000  # values that are read at once
LISTED = ".trackside.json"  # the files that were written here
LISTED_BYTES = 1_000_000
DRAWING_SECONDS = 25.0  # of a processor, after which no further PNG is drawn
DRAWING_WALL_SECONDS = 60.0  # the same by the clock: the process has the lowest priority
PNG_MEMORY = 384 << 20  # bytes of address space that matplotlib and numpy need

_DYNAMICS = re.compile(r"training_dynamics_step_(\d+)\.png")


def write_experiment(history: Readable, contents: Mapping[str, Any], root: Path) -> Path:
    """Write the files of a run, see `diagnosis.report`, and return its directory.

    Raises:
        OSError: A file cannot be written.
        ValueError: The directory belongs to another user, or the history is damaged.
    """
    about = contents["run"]
    named, id_ = plots.file_name(about["name"]), folder(about["id"])
    name = id_ if named == id_ and "-" not in id_ else named_folder(named, about["id"])
    top = _Directory(os.open(root, os.O_RDONLY | os.O_DIRECTORY), name)
    try:
        top.put("config.json", _json(_config(name, about)))
        top.put("results.json", _json(_results(about)))
        top.put("report.html", written(report.document([contents])).encode("utf-8", "replace"))
        with top.inner("logs") as logs:
            _write_metrics(history, about, logs)
        with top.inner("visualizations") as place:
            names = [place.put(file, content) for file, content in _plots(contents)]
            place.keep(names)
    finally:
        top.close()
    return root / name


class _Directory:
    """A directory of this user, which is made if it is missing; no link leads elsewhere."""

    def __init__(self, parent: int, name: str) -> None:
        try:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
            self._file = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
        if os.fstat(self._file).st_uid != os.geteuid():
            self.close()
            raise ValueError(f"the directory {name} belongs to another user; remove it")

    def __enter__(self) -> _Directory:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._file)

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=self._file)

    def inner(self, name: str) -> _Directory:
        return _Directory(os.dup(self._file), name)

    def put(self, name: str, content: bytes | Iterator[bytes]) -> str:
        """Write a file in one step, so that readers never see half of it."""
        unfinished = f".{name}.unfinished"
        self.delete(unfinished)  # of a process that was killed
        try:
            with os.fdopen(self._open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as out:
                out.writelines((content,) if isinstance(content, bytes) else content)
            os.replace(unfinished, name, src_dir_fd=self._file, dst_dir_fd=self._file)
        except (OSError, ValueError, MemoryError):
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=self._file)
            raise
        return name

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file, at most some bytes."""
        with os.fdopen(self._open(name, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return file.read(most)

    def ends_a_line(self, name: str, size: int) -> bool:
        """Return whether a file has at least some bytes, and the last of these ends a line."""
        try:
            with os.fdopen(self._open(name, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                return size > 0 and os.pread(file.fileno(), 1, size - 1) == b"\n"
        except OSError:
            return False

    def append(self, name: str, size: int, content: Iterator[bytes]) -> None:
        """Append lines to the first bytes of a file, each by one write, so that readers see whole lines."""
        with os.fdopen(self._open(name, os.O_RDWR | os.O_NONBLOCK), "r+b", buffering=0) as file:
            os.ftruncate(file.fileno(), size)  # what a process that was killed has left
            file.seek(size)
            for line in content:
                if file.write(line) < len(line):  # the next time does not keep it
                    raise OSError(ENOSPC, os.strerror(ENOSPC), name)

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._file)

    def keep(self, names: Sequence[str]) -> None:
        """Delete the files of the times before, except the newest dynamics; the user's own files stay."""
        listed: set[str] = set()
        with suppress(OSError, ValueError):
            listed = set(msgspec.json.decode(self.read(LISTED, LISTED_BYTES), type=list[str]))
        dynamics = sorted((int(match[1]), match[0]) for match in map(_DYNAMICS.fullmatch, {*listed, *names}) if match)
        kept = {*names, *(name for _, name in dynamics[-DYNAMICS_FILES:])}
        for name in listed - kept:
            with suppress(OSError):
                os.unlink(name.rpartition("/")[2], dir_fd=self._file)
        self.put(LISTED, msgspec.json.encode(sorted(kept)))


def _json(value: object) -> bytes:
    return json.dumps(json_value(value), indent=1, allow_nan=False).encode() + b"\n"


def _config(name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the last attempt, and what it takes to repeat the run."""
    attempt = about["attempt_list"][-1] if about["attempt_list"] else {}
    facts = {
        key: value
        for key, value in attempt.items()
        if key not in {"config", "state", "cause", "phases", "step_seconds"}
    }
    hardware = facts.pop("hardware", {})
    return {
        "experiment_id": name,
        "run": about["id"],
        "name": about["name"],
        "tags": about["tags"],
        "git_hash": facts.get("git_commit") or None,
        "hardware": {**hardware, "gpu_model": next(iter(hardware.get("gpus", ())), None)},
        "config": attempt.get("config"),
        "attempt": facts,
    }


def _results(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return last, best, lowest and highest value of each key, and the results that the run has stated."""
    ended = about["ended"] or time.time()
    return {
        "state": about["state"],
        "step": about["step"],
        "total_time_seconds": round(ended - about["started"], 3),
        "final_metrics": {one["key"]: one["final"] for one in run.metrics(about)},
        "metrics": {one.pop("key"): one for one in run.metrics(about)},
        "results": about.get("summary", {}),
    }


class _Place(msgspec.Struct):
    """The rank of an attempt in metrics.jsonl, its pushes in the history then, and the number of samples of each key."""

    rank: int
    pushes: int
    sent: dict[str, int]


class _Written(msgspec.Struct):
    """The bytes and lines of metrics.jsonl, and how far it has each attempt."""

    bytes: int = 0
    lines: int = 0
    attempts: dict[int, _Place] = {}


def _write_metrics(history: Readable, about: Mapping[str, Any], logs: _Directory) -> None:
    """Append the pushes that metrics.jsonl lacks; write it anew if it is not as it was left, or has become twice as long."""
    most = min(ROWS, max(1, VALUES // max(1, len(run.metrics(about)))))
    with history.reading() as connection:
        every = streams(connection, about["id"], every_rank=False)
    written = _Written()
    with suppress(OSError, ValueError):
        written = msgspec.json.decode(logs.read(WRITTEN, WRITTEN_BYTES), type=_Written)
    now = {one.place.attempt: one for one in every}
    goes_on = logs.ends_a_line(METRICS, written.bytes) and written.lines <= 2 * most
    for number, place in written.attempts.items():
        one = now.get(number)
        goes_on = goes_on and one is not None and one.place.rank == place.rank and one.pushes >= place.pushes
    if goes_on:
        logs.append(METRICS, written.bytes, _metrics(history, every, written))
    else:
        logs.delete(WRITTEN)  # it would not fit the new file
        written = _beginning(history, every, Window("step", float((about["step"] or 0) - most + 1)), most)
        logs.put(METRICS, _metrics(history, every, written))
    if sum(len(place.sent) for place in written.attempts.values()) <= GROUP:
        logs.put(WRITTEN, msgspec.json.encode(written))
    else:
        logs.delete(WRITTEN)


def _beginning(history: Readable, every: Sequence[RankStream], window: Window, most: int) -> _Written:
    """Return the places from which a new metrics.jsonl has the newest steps: of each attempt, until there are *most* pushes."""
    written = _Written()
    for stream in reversed(every):
        with history.reading() as connection:
            tail, inside, sent = LogTail(connection, stream.id), dict[int, int](), {}
            for series in find(connection, stream.id, tail):
                count = count_of(connection, series, tail, window, inside)
                sent[series.key] = series.end + len(tail.read(series)[0]) - (count if most > 0 else 0)
        written.attempts[stream.place.attempt] = _Place(stream.place.rank, stream.pushes, sent)
        most -= stream.pushes
    return written


def _metrics(history: Readable, every: Sequence[RankStream], written: _Written) -> Iterator[bytes]:
    """Yield a flat line of JSON for each further push of the lowest rank, and note how far that is."""
    encode = msgspec.json.Encoder().encode
    for stream in every:
        place = written.attempts.setdefault(stream.place.attempt, _Place(stream.place.rank, 0, {}))
        complete, place.pushes = False, stream.pushes
        while not complete:
            with history.reading() as connection:
                found = unsent(connection, stream, place.sent, AT_ONCE)
            for row in found.rows:
                values = {"step": row.step, "time": row.time / 1e6, "attempt": row.attempt, **json_value(row.values)}
                line = encode(values) + b"\n"
                written.bytes += len(line)
                yield line
            place.sent |= found.sent
            written.lines += len(found.rows)
            complete = found.complete


def _plots(contents: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of plots, and of images that the run has pushed."""
    charts, axes = report.charts([contents]), [contents["axes"]]
    machine = [chart for chart in charts if chart["key"].startswith("resources/")]
    own = [chart for chart in charts if chart not in machine]
    drawn = [*own[: max(CHARTS // 2, CHARTS - len(machine))], *machine][:CHARTS]
    draws, until = _draws(), time.monotonic() + DRAWING_WALL_SECONDS
    if draws and own and contents["run"]["step"] is not None:
        yield f"training_dynamics_step_{contents['run']['step']}.png", plots.png(own[:DYNAMICS], axes, plots.DARK)
    names: dict[str, int] = {}
    for chart in drawn:
        name = plots.file_name(chart["key"])
        names[name] = names.get(name, 0) + 1
        pngs = draws and time.process_time() < DRAWING_SECONDS and time.monotonic() < until
        yield from plots.files(f"{name}-{names[name]}" if names[name] > 1 else name, chart, axes, pngs=pngs)
    for series in contents["media"]:
        for item in series["items"] if series["kind"] == "image" else ():
            name = plots.file_name(series["key"]) + (f"-rank{series['rank']}" if series["rank"] else "")
            yield f"{name}_step_{item['step'] or 0}.png", b64decode(item["data"])


def _draws() -> bool:
    """Return whether this process can draw PNG files: where memory is short, numpy's library ends it without an exception."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each thread has tens of MiB
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return find_spec("matplotlib") is not None and (limit == resource.RLIM_INFINITY or limit >= PNG_MEMORY)
