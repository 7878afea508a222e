"""The runs of all machines: live ones from a Prometheus-compatible server, ended ones from the archive of Parquet files."""

import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

from trackside_daemon.bridges.settings import FleetSection
from trackside_daemon.history.read import run_query
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.records import ENDS

LIVE_SECONDS, ARCHIVE_SECONDS = (5.0, 60.0), (60.0, 86400.0)  # between two readings, and for which one is shown
PATIENCE_SECONDS = 0.5  # for which a request waits for live runs; the archive would take longer
RUNS = 10_000  # most live runs that are shown
HOSTS = 10_000  # whose daemons' addresses are remembered
LONGEST_SECONDS = 300.0  # for which the archive may be read
_HOST = re.compile(r"[\w.-]{1,253}|\[[0-9a-fA-F:.]+\]|[\w.-]{1,253}:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}", re.ASCII)

Runs: TypeAlias = list[dict[str, Any]]


class _Engine:
    """What has the runs: the last answer, and a thread that asks again once that is due. So nobody waits for a slow one.

    Args:
        name: Its runs.
        ask: Returns them, and what is wrong.
        seconds: Between two questions.
        kept: Seconds for which an answer is shown.
    """

    def __init__(self, name: str, ask: Callable[[], tuple[Runs, str]], seconds: float, kept: float) -> None:
        self._name, self._ask, self._seconds, self._kept = name, ask, seconds, kept
        self._answer: tuple[float, Runs, str] = (-inf, [], "")
        self._lock = threading.Lock()
        self._thread = threading.Thread()

    def answer(self, patience: float = 0.0) -> tuple[Runs, str, str]:
        """Return the runs, what is wrong, and a note if they are not read yet; wait for a due answer at most *patience*."""
        with self._lock:
            if time.monotonic() - self._answer[0] >= self._seconds and not self._thread.is_alive():
                self._thread = threading.Thread(target=self._read, name="trackside-fleet", daemon=True)
                self._thread.start()
        if self._thread.is_alive():
            self._thread.join(patience)
        at, runs, problem = self._answer
        if time.monotonic() - at > self._kept:
            return [], "", f"{self._name} being read"
        return runs, problem, ""

    def _read(self) -> None:
        runs, problem = self._ask()
        self._answer = time.monotonic(), runs, problem


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
            run if "url" in run else {**run, "url": self._page({"host": run["host"], "run_id": run["id"]})}
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

    def _ask_server(self) -> tuple[Runs, str]:
        from trackside_daemon.bridges.prometheus_runs import live_runs  # most daemons ask no server
        from trackside_daemon.http_client.http_request import read_headers, tls_context

        server = self._settings.prometheus
        try:
            headers = read_headers(server.headers_file, "fleet.prometheus.headers-file")
            self._trust = self._trust or tls_context(server.ca_file, "fleet.prometheus.ca-file")
            found = live_runs(server.url, headers, self._trust, self._page)
        except (SendError, SettingError) as error:
            return [], f"Live runs are missing: {error}"
        more = len(found) - RUNS
        return found[:RUNS], f"{more:,} live runs are left out, which began before the others" if more > 0 else ""

    def _ask_archive(self) -> tuple[Runs, str]:
        from trackside_daemon.bridges.parquet.archived import MODULE, Archived, ArchiveRequest

        try:
            with CallWorker(MODULE, Archived, name="the process that reads it") as worker:
                found = worker.ask(ArchiveRequest(self._archive), LONGEST_SECONDS)
        except WorkerFailed as error:
            return [], f"Ended runs are missing: {error}"
        return found.runs, f"Left out of the archive: {found.left_out[0]}" if found.left_out else ""

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
