"""A run of MLflow, whatever stores it: its fields, and its metrics merged back into pushes."""

import os
import re
import sys
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from math import inf, nan
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trackside.packing import writable
from trackside_daemon.bridges.foreign_run import (
    MAX_KEYS,
    MAX_RUNS,
    NO_TIME,
    ForeignRun,
    ForeignRunError,
    newest,
    read_yaml,
)
from trackside_daemon.bridges.mlflow.rest_client import RestClient, authorization
from trackside_daemon.bridges.sqlite_file import reading, rows, tables
from trackside_daemon.history.files.items import Push
from trackside_daemon.history.files.left_out import DAMAGED_LINE, DAMAGED_ROW, NO_NUMBER, TORN_LINE
from trackside_daemon.history.files.merging import Chunk, merge
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.linux.foreign_file import open_foreign

STATES = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "stopped"}
STATUSES = ("", "RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")  # by their number in a file store
CHUNK_SAMPLES = 16_384


class TrackedRun(ForeignRun):
    """A run of MLflow.

    Args:
        id: Its id.
        place: Where it is stored.
        fields: ``run_name``, ``status``, ``user_id``, as far as they are known.
    """

    def __init__(self, id: str, place: str, fields: Mapping[str, Any]) -> None:  # noqa: A002  the field's word
        super().__init__(id, str(fields.get("run_name") or fields.get("name") or id), place, "MLflow")
        status = str(fields.get("status", ""))
        if status in STATES:
            self.state = STATES[status]
            self.cause = ""
        elif status:
            self.state, self.cause = "lost", "imported before its end"
        if user := fields.get("user_id"):
            self.about["user"] = str(user)

    def read(self, *, final: bool = True) -> Iterator[Push]:
        """See `ForeignRun`."""
        params, tags = (list(self._pairs(kind)) for kind in ("params", "tags"))
        self.tags = ()
        self.config.update({key: _number_or_text(value) for key, value in params})
        for key, value in tags:
            if not key.startswith("mlflow."):
                self.tags = (*self.tags, f"{key}={value}")
            elif key in _ABOUT:
                self.about[_ABOUT[key]] = value
        keys = self._metrics()
        names = list(map(writable, keys))
        for line in merge([self._chunks(key, final=final) for key in keys]):
            values = {names[place]: value for place, value in zip(line.places, line.values, strict=True)}
            if (push := self.push(0, line.step, line.time / 1e6, values)) is not None:
                yield push

    @abstractmethod
    def _pairs(self, kind: str) -> Iterable[tuple[str, str]]:
        """Return the parameters or the tags, by *kind* ``params`` or ``tags``."""

    @abstractmethod
    def _metrics(self) -> list[str]:
        """Return the keys."""

    @abstractmethod
    def _samples(self, key: str, *, final: bool) -> Iterator[tuple[int, int, float]]:
        """Yield the samples of a key: step, time in milliseconds, value."""

    def _chunks(self, key: str, *, final: bool) -> Iterator[Chunk]:
        """Yield the samples of a key as `merge` reads them."""
        steps, times, values = array("q"), array("q"), array("d")
        for step, milliseconds, value in self._samples(key, final=final):
            if not (abs(step) < 2**63 and abs(milliseconds) < 2**50):
                self.left_out.add(NO_TIME, writable(key))
                continue
            steps.append(step)
            times.append(milliseconds * 1000)
            values.append(value)
            if len(steps) == CHUNK_SAMPLES:
                yield steps, times, values
                steps, times, values = array("q"), array("q"), array("d")
        if len(steps):
            yield steps, times, values


_ABOUT = {"mlflow.source.name": "command", "mlflow.source.git.commit": "git_commit"}


def restored(value: float, *, is_nan: bool = False) -> float:
    """Return a value as it was logged: databases of MLflow have the largest number for an infinity."""
    return nan if is_nan else inf if value >= sys.float_info.max else -inf if value <= -sys.float_info.max else value


def _number_or_text(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


TABLES = {"runs", "metrics", "params", "tags", "experiments"}


class DatabaseRun(TrackedRun):
    """A run in a database.

    Args:
        path: The database.
        id: The run's id.
        fields: See `TrackedRun`.
    """

    def __init__(self, path: Path, id: str, fields: dict[str, str]) -> None:  # noqa: A002  the field's word
        super().__init__(id, f"{path} ({id})", fields)
        self.paths = [path, path.with_name(f"{path.name}-wal")]
        self._path = path

    def _pairs(self, kind: str) -> Iterator[tuple[str, str]]:
        query = f"SELECT key, value FROM {kind} WHERE run_uuid = ?"  # noqa: S608
        for key, value in islice(rows(self._path, query, (self.id,), self.left_out), MAX_KEYS):
            yield str(key), str(value)

    def _metrics(self) -> list[str]:
        queries = [
            f"SELECT DISTINCT key FROM {table} WHERE run_uuid = ?"  # noqa: S608
            for table in sorted({"latest_metrics", "metrics"} & tables(self._path))  # one may be damaged
        ]
        found = {str(key) for query in queries for (key,) in rows(self._path, query, (self.id,), self.left_out)}
        return sorted(found)[:MAX_KEYS]

    def _samples(self, key: str, *, final: bool) -> Iterator[tuple[int, int, float]]:
        del final
        query = (
            "SELECT step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY timestamp, step"
        )
        for step, time, value, no_number in rows(self._path, query, (self.id, key), self.left_out):
            if isinstance(step, int) and isinstance(time, int) and isinstance(value, int | float):
                yield step, time, restored(float(value), is_nan=bool(no_number))
            else:
                self.left_out.add(DAMAGED_ROW, key)


def database_runs(path: Path) -> list[DatabaseRun]:
    """Return the runs in a database, oldest first, without deleted ones.

    Raises:
        ForeignRunError: The file cannot be read.
    """
    query = "SELECT run_uuid, name, status, user_id FROM runs WHERE lifecycle_stage != 'deleted' ORDER BY start_time"
    with reading(path) as connection:
        found = connection.execute(query).fetchmany(MAX_RUNS)
    return [
        DatabaseRun(path, str(id_), {"name": name, "status": status, "user_id": user})
        for id_, name, status, user in found
    ]


META = "meta.yaml"
META_BYTES = 64 * 1024
TEXT_BYTES = 16 * 1024  # longest parameter or tag that is read
LINE_BYTES = 4096
UNREADABLE = "unreadable file(s)"


class FileStoreRun(TrackedRun):
    """A run in a file store.

    Args:
        directory: Its directory.

    Raises:
        ForeignRunError: It has no valid meta.yaml.
    """

    def __init__(self, directory: Path) -> None:
        fields = read_yaml(directory / META, META_BYTES)
        status = fields.get("status", "")
        if isinstance(status, int):
            status = STATUSES[status] if 0 <= status < len(STATUSES) else ""
        id_ = fields.get("run_id") or fields.get("run_uuid")
        super().__init__(str(id_ or directory.name), str(directory), {**fields, "status": status})
        self._directory = directory

    def modified(self) -> float:
        """See `ForeignRun`."""
        return newest([self._directory / META, *(self._directory / "metrics" / key for key in self._metrics())])

    def _pairs(self, kind: str) -> Iterator[tuple[str, str]]:
        if (self._directory / kind).is_symlink():
            self.left_out.add(UNREADABLE, f"{kind} (a symbolic link)")
        for key in _files(self._directory / kind):
            try:
                with open_foreign(self._directory / kind / key) as file:
                    yield writable(key), file.read(TEXT_BYTES).decode("utf-8", "replace").strip()
            except OSError as error:
                self.left_out.add(UNREADABLE, f"{kind}/{key} ({error.strerror})")

    def _metrics(self) -> list[str]:
        return _files(self._directory / "metrics")

    def _samples(self, key: str, *, final: bool) -> Iterator[tuple[int, int, float]]:
        try:
            with open_foreign(self._directory / "metrics" / key) as file:
                for line in iter(partial(file.readline, LINE_BYTES), b""):
                    # Without its end, the last number may be cut off.
                    if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                        self.left_out.add(TORN_LINE, key, count=final)
                        continue
                    try:
                        milliseconds, value, step, *_ = [*line.split(), b"0"]
                        yield int(step), int(milliseconds), float(value)
                    except ValueError:
                        self.left_out.add(DAMAGED_LINE, key)
        except OSError as error:
            self.left_out.add(UNREADABLE, f"metrics/{key} ({error.strerror})")


def _files(directory: Path) -> list[str]:
    """Return the files below a directory, whose names are keys that may have slashes; none if it is a link."""
    found: list[str] = []
    if directory.is_symlink():
        return found
    for folder, folders, names in os.walk(directory):
        folders.sort()
        relative = os.path.relpath(folder, directory)
        found += [name if relative == "." else f"{relative}/{name}" for name in sorted(names)]
        if len(found) > MAX_KEYS:
            break
    return found[:MAX_KEYS]


PAGE = 1000
HISTORY_PAGE = 25_000  # samples of a metric in one answer, the server's limit

_PAGE = re.compile(r"/?(experiments/(?P<experiment>[\w-]+))?(/runs/(?P<run>[\w-]+))?")


class ServerRun(TrackedRun):
    """A run on a server.

    Args:
        client: The server's API.
        run: The run as the server describes it.
    """

    def __init__(self, client: RestClient, run: Mapping[str, Any]) -> None:
        info = run.get("info") or {}
        super().__init__(
            str(info.get("run_id") or info.get("run_uuid")), f"{client.url} (run {info.get('run_id')})", info
        )
        self._client = client
        self._data = run.get("data") or {}

    def _pairs(self, kind: str) -> list[tuple[str, str]]:
        return [(str(one.get("key")), str(one.get("value", ""))) for one in self._data.get(kind) or ()]

    def _metrics(self) -> list[str]:
        return sorted({str(metric.get("key")) for metric in self._data.get("metrics") or ()})[:MAX_KEYS]

    def _samples(self, key: str, *, final: bool) -> Iterator[tuple[int, int, float]]:
        del final
        query = {"run_id": self.id, "metric_key": key, "max_results": HISTORY_PAGE}
        try:
            for metric in self._client.get_pages("metrics/get-history", "metrics", **query):
                try:
                    value = restored(float(metric.get("value", 0)))
                    yield int(metric.get("step", 0)), int(metric.get("timestamp", 0)), value
                except (TypeError, ValueError):
                    self.left_out.add(NO_NUMBER, key)
        except SendError as error:
            raise ForeignRunError(f"{self.place}: {error}") from None


def server_runs(address: str, environ: Mapping[str, str]) -> list[ServerRun]:
    """Return runs on a server, oldest first.

    Args:
        address: Its address; that of a page of an experiment or of a run, as a browser shows it, means only these.
        environ: Environment with `authorization`.

    Raises:
        ForeignRunError: The server does not answer, or it is no MLflow server.
    """
    parts = urlsplit(address)
    page = _PAGE.match(parts.fragment)
    experiment, run = (page["experiment"], page["run"]) if page else (None, None)
    url = f"{parts.scheme}://{parts.netloc}{parts.path}"
    headers = {} if parts.username else authorization(environ)
    client = RestClient(url, headers)
    try:
        if run:
            return [ServerRun(client, client.get("runs/get", run_id=run)["run"])]
        experiments = [experiment] if experiment else _experiments(client)
        found: list[ServerRun] = []
        for number in experiments:
            body = {"experiment_ids": [number], "max_results": PAGE, "order_by": ["attributes.start_time ASC"]}
            for one in client.pages("runs/search", "runs", body):
                found.append(ServerRun(client, one))
                if len(found) >= MAX_RUNS:
                    return found
    except (SendError, KeyError, TypeError, AttributeError) as error:
        reason = f"{address}: the answer is not that of an MLflow server"
        raise ForeignRunError(str(error) if isinstance(error, SendError) else reason) from None
    return found


def _experiments(client: RestClient) -> list[str]:
    return [
        str(one["experiment_id"]) for one in client.pages("experiments/search", "experiments", {"max_results": PAGE})
    ]
