"""The runs of all machines: live ones from a Prometheus-compatible server, ended ones from the archive of Parquet files."""

import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from trackside_daemon.bridges.settings import FleetSection
from trackside_daemon.history.read import run_query
from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import json_number
from trackside_daemon.model.records import ENDS

LIVE_SECONDS, ARCHIVE_SECONDS = (5.0, 60.0), (60.0, 86400.0)  # between two readings, and for which one is shown
PATIENCE_SECONDS = 0.5  # for which a request waits for live runs; the archive would take longer
RUNS = 10_000  # most live runs that are shown
HOSTS = 10_000  # whose daemons' addresses are remembered
LONGEST_SECONDS = 300.0  # for which the archive may be read
_HOST = re.compile(r"[\w.-]{1,253}|\[[0-9a-fA-F:.]+\]|[\w.-]{1,253}:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}", re.ASCII)
ANSWER_BYTES = 16 * 2**20  # of each of the queries, which are asked at once
Runs: TypeAlias = list[dict[str, Any]]
Labels: TypeAlias = dict[str, str]
Key: TypeAlias = frozenset[tuple[str, str]]
"""The labels of a target, such as instance and cluster, and the name of a run."""
_UNKNOWN = {"cause": "", "tags": [], "summary": {}, "config": {}, "notes": "", "pinned": False}
_OF_SERIES = {"__name__", "rank", "state", "key", *f.RUN_INFO.labels} - {"run"}


class _Sample(msgspec.Struct):
    metric: Labels
    value: tuple[float, str]


class _Vector(msgspec.Struct, rename="camel"):
    result: list[_Sample] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Vector = msgspec.field(default_factory=_Vector)
    error: str = ""


def _queries(ranks: str) -> dict[str, str]:
    """Return the queries by what they are for; rank 0 is on one of a run's machines, the others have a higher one as their lowest."""
    losses = (("loss", f.KNOWN["loss"].name, ""), ("other losses", f.VALUE.name, f'key=~"{"|".join(LOSSES[1:])}",'))
    return {
        "info": f.RUN_INFO.name,
        "state": f"{f.STATE.name} == 1",
        "step": f"max without (rank) ({f.STEP.name}{{{ranks}}})",
        "started": f"min without (rank) ({f.STARTED.name}{{{ranks}}})",
        "ended": f"max without (rank) ({f.ENDED_AT.name})",
        **{
            name: f'{family}{{{keys}rank="0"}} or ignoring (rank) {family}{{{keys}{ranks}}}'
            for name, family, keys in losses
        },
    }


# The series of all ranks take a server five times as long.
FIRST_QUERIES, QUERIES = _queries('rank="0"'), _queries('rank!=""')


def _vector(url: str, headers: Mapping[str, str], context: ssl.SSLContext, query: str) -> list[_Sample]:
    from trackside_daemon.http_client import http_request  # most daemons ask no server

    address = f"{url.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
    body = http_request.request("GET", address, None, headers, context, longest=ANSWER_BYTES)
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError as error:
        raise SendError(f"its answer to {query} is none of Prometheus: {error}", "later") from None
    if answer.status != "success":
        raise SendError(f"it refuses {query}: {answer.error}", "later")
    return answer.data.result


def _live_runs(ask: Callable[[str], list[_Sample]], queries: Mapping[str, str], page: Callable[[Labels], str]) -> Runs:
    """Return the runs that a server knows now, newest first, one row for each run on all its machines, with the address of its page."""
    with ThreadPoolExecutor(len(queries), "trackside-fleet") as threads:
        found = dict(zip(queries, threads.map(ask, queries.values()), strict=True))
    losses: dict[Key, tuple[int, float]] = {}
    places = {key: place for place, key in enumerate(LOSSES)}
    others = sorted(found["other losses"], key=lambda one: (_rank(one), places.get(one.metric.get("key", ""), 0)))
    for one in (*sorted(found["loss"], key=_rank), *others):
        losses.setdefault(_key(one), (_rank(one), _number(one.value[1])))
    values: dict[str, dict[Key, Any]] = {
        **{
            name: {_key(one): value for one in found[name] if isfinite(value := _number(one.value[1]))}
            for name in ("step", "started", "ended")
        },
        "state": {_key(one): one.metric.get("state", "") for one in found["state"]},
        "loss": losses,
    }
    rows = (
        _row(one.metric, {name: known.get(_key(one)) for name, known in values.items()}, page) for one in found["info"]
    )
    return sorted(_merged(rows), key=lambda row: -(row["started"] or 0.0))


def _key(one: _Sample) -> Key:
    labels = one.metric.items()
    return frozenset(item for item in labels if item[0] not in _OF_SERIES and not item[0].startswith("exported_"))


def _rank(one: _Sample) -> int:
    return _whole(one.metric.get("rank", ""), 0)


def _whole(text: str, default: int) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else default


def _number(text: str) -> float:
    """Return a value, which any target may have written; nan if it is none."""
    try:
        return float(text)
    except ValueError:
        return nan


def _row(info: Labels, values: Mapping[str, Any], page: Callable[[Labels], str]) -> dict[str, Any]:
    """Return a run on one machine, as the list of runs has it."""
    state, step = values["state"] or "", values["step"]
    rank, loss = values["loss"] or (1 << 30, None)
    return {
        "id": info.get("run_id", ""),
        "name": info.get("run", ""),
        "state": state,
        "attempt": _whole(info.get("attempt", ""), 1),
        "started": values["started"],
        "ended": values["ended"] if state in ENDS else None,
        "step": None if step is None else int(step),
        "loss": None if loss is None else json_number(loss),
        "rank": rank,
        "host": info.get("host", ""),
        "user": info.get("user", ""),
        "url": page(info),
    }


def _merged(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each run: of its newest attempt, with the facts of the machine that has the lowest rank."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = found.get(row["id"])
        if known is None or known["attempt"] < row["attempt"]:
            found[row["id"]] = row
        elif known["attempt"] == row["attempt"]:
            first, other = sorted((known, row), key=lambda one: (one["rank"], one["host"]))
            merged: dict[str, Any] = {
                name: best((one[name] for one in (first, other) if one[name] is not None), default=None)
                for name, best in (("step", max), ("started", min))
            }
            merged["host"] = ", ".join(dict.fromkeys(filter(None, (*first["host"].split(", "), other["host"]))))
            found[row["id"]] = {**first, **merged}
    for row in found.values():
        del row["rank"]
    return [*found.values()]


Ask: TypeAlias = Callable[[bool], Iterator[tuple[Runs, str]]]
"""Asks for runs, and yields them and what is wrong; if none are known yet, first those that come soon."""


class _Engine:
    """An engine that has runs: its last answer, and a thread that asks again once that is due, so that no request waits long."""

    def __init__(self, name: str, ask: Ask, seconds: float, kept: float) -> None:
        self._name, self._ask, self._seconds, self._kept = name, ask, seconds, kept
        self._answer: tuple[float, Runs, str] = (-inf, [], "")
        self._lock = threading.Lock()
        self._thread = threading.Thread()
        self._answered = threading.Event()

    def answer(self, patience: float) -> tuple[Runs, str, str]:
        """Return the runs, what is wrong, and a note if they are not read yet; wait for a due answer at most *patience*."""
        with self._lock:
            if time.monotonic() - self._answer[0] >= self._seconds and not self._thread.is_alive():
                self._answered.clear()
                self._thread = threading.Thread(target=self._read, name="trackside-fleet", daemon=True)
                self._thread.start()
        self._answered.wait(patience)
        if time.monotonic() - self._answer[0] > self._kept:
            return [], "", f"{self._name} being read"
        return *self._answer[1:], ""

    def _read(self) -> None:
        try:
            for runs, problem in self._ask(time.monotonic() - self._answer[0] <= self._kept):
                self._answer = time.monotonic(), runs, problem
                self._answered.set()
        except Exception as error:  # noqa: BLE001  whatever a server answers; without an answer it would be asked again at once
            self._answer = time.monotonic(), [], f"{self._name} missing: {type(error).__name__}: {error}"
            self._answered.set()


def joined(found: Iterable[dict[str, Any]]) -> Runs:
    """Return each run once: live ones, which come first, as they are; of ended ones, the archive has the last step and loss."""
    known: dict[str, dict[str, Any]] = {}
    for run in found:
        first = known.setdefault(run["id"], run)
        if first["state"] in ENDS and run["attempt"] >= first["attempt"]:
            known[run["id"]] = run
    return [*known.values()]


class Fleet:
    """Reads both engines, each in its own time: one that is down costs only its own runs.

    Args:
        settings: Where they are.
        archive: Address of the archive; empty for none.
    """

    def __init__(self, settings: FleetSection, archive: str) -> None:
        self._settings = settings
        has_place = not archive or urlsplit(archive).scheme
        # The process that reads it runs in another directory.
        self._archive = archive if has_place else str(Path(archive).expanduser().absolute())
        self._engines = [
            *([_Engine("Live runs are", self._ask_server, *LIVE_SECONDS)] if settings.prometheus.url else []),
            *([_Engine("The archive is", self._ask_archive, *ARCHIVE_SECONDS)] if archive else []),
        ]
        self._trust: ssl.SSLContext | None = None  # which takes long to read
        self._instances: dict[str, str] = {}

    @property
    def is_configured(self) -> bool:
        """True if there is anything to show."""
        return bool(self._engines)

    def runs(self, query: str = "") -> dict[str, Any]:
        """Return the runs that a query selects, what is wrong with an engine, and which has not answered yet.

        Raises:
            QueryError: The query cannot be read.
        """
        if not self.is_configured:
            return {"runs": [], "problems": ["Set fleet.prometheus.url, the address of a Prometheus-compatible server"]}
        terms = run_query.parse(query)
        # Only the first, which has the live runs, is waited for.
        answers = [engine.answer(0.0 if number else PATIENCE_SECONDS) for number, engine in enumerate(self._engines)]
        found = [
            {**_UNKNOWN, "url": run.get("url") or self._page({"host": run["host"], "run_id": run["id"]}), **run}
            for run in joined(run for runs, *_ in answers for run in runs)
        ]
        selected = run_query.select(None, terms, found) if terms else run_query.SelectedRuns(found, "")
        return {
            "problems": [problem for _, problem, _ in answers if problem],
            "notes": [note for *_, note in answers if note],
            "among": len(found),
            "runs": selected.runs,
            "terms": [term.text for term in terms],
            "hint": selected.hint,
        }

    def _ask_server(self, is_known: bool) -> Iterator[tuple[Runs, str]]:
        from trackside_daemon.http_client import http_request

        server = self._settings.prometheus
        try:
            headers = http_request.read_headers(server.headers_file, "fleet.prometheus.headers-file")
            self._trust = self._trust or http_request.tls_context(server.ca_file, "fleet.prometheus.ca-file")
            for queries in (QUERIES,) if is_known else (FIRST_QUERIES, QUERIES):
                found = _live_runs(partial(_vector, server.url, headers, self._trust), queries, self._page)
                more = len(found) - RUNS
                yield found[:RUNS], f"{more:,} live runs are left out, the first that began" if more > 0 else ""
        except (SendError, SettingError) as error:
            self._trust = None  # its file may have changed
            yield [], f"Live runs are missing: {error}"

    def _ask_archive(self, _is_known: bool) -> Iterator[tuple[Runs, str]]:
        from trackside_daemon.bridges.parquet.fleet import MODULE, Archived

        try:
            with CallWorker(MODULE, Archived, name="the process that reads it") as worker:
                found = worker.ask(self._archive, LONGEST_SECONDS)
            yield found.runs, f"Left out of the archive: {found.left_out[0]}" if found.left_out else ""
        except WorkerFailed as error:
            yield [], f"Ended runs are missing: {error}"

    def _page(self, info: Mapping[str, str]) -> str:
        """Return the address of a run's page at its daemon; empty if that is not known."""
        host, instance = info.get("host", "").partition(",")[0], info.get("instance", "")
        if instance:
            self._instances.pop(host, None)
            self._instances[host] = instance
            if len(self._instances) > HOSTS:  # such as those of Pods, which come and go
                del self._instances[next(iter(self._instances))]
        instance = instance or self._instances.get(host, "") or (f"{host}:21790" if host else "")
        if not _HOST.fullmatch(instance):
            return ""
        return f"{self._settings.daemon_url.format(instance=instance).rstrip('/')}/runs/{quote(info.get('run_id', ''), safe='')}"
