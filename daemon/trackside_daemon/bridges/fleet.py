"""The runs of all machines: live ones from a Prometheus-compatible server, ended ones from the archive of Parquet files."""

import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from trackside_daemon.bridges.parquet.archived_request import MODULE, Archived, ArchiveRequest
from trackside_daemon.bridges.settings import FleetSection
from trackside_daemon.history.read import run_query
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed

LIVE_SECONDS, ARCHIVE_SECONDS = 5.0, 60.0  # between two readings
HOSTS = 10_000  # whose daemons' addresses are remembered
LONGEST_SECONDS = 300.0  # for which the archive may be read
_HOST = re.compile(r"[\w.-]{1,253}|\[[0-9a-fA-F:.]+\]|[\w.-]{1,253}:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}", re.ASCII)


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
        self._lock = threading.Lock()
        wait = "Live runs are being read" if settings.prometheus.url else ""
        self._live: tuple[float, list[dict[str, Any]], str] = (-LIVE_SECONDS, [], wait)
        self._ended: tuple[float, list[dict[str, Any]], str] = (-ARCHIVE_SECONDS, [], "The archive is being read")
        self._reading: threading.Thread | None = None
        self._instances: dict[str, str] = {}

    @property
    def is_configured(self) -> bool:
        """True if there is anything to show."""
        return bool(self._settings.prometheus.url or self._archive)

    def runs(self, query: str = "") -> dict[str, Any]:
        """Return the runs that a query selects, and what is wrong with an engine; it may wait for the server.

        Raises:
            QueryError: The query cannot be read.
        """
        if not self.is_configured:
            return {"runs": [], "problems": ["Set fleet.prometheus.url, the address of a Prometheus-compatible server"]}
        live, problem = self._read_live()
        ended, unread = self._read_archive()
        linked = [{**run, "url": self._page({"host": run["host"], "run_id": run["id"]})} for run in ended]
        found = [*live, *(run for run in linked if run["id"] not in {one["id"] for one in live})]
        answer: dict[str, Any] = {"problems": [text for text in (problem, unread) if text], "among": len(found)}
        terms = run_query.parse(query)
        selected = run_query.select(None, terms, found) if terms else run_query.SelectedRuns(found, "")
        return {**answer, "runs": selected.runs, "terms": [term.text for term in terms], "hint": selected.hint}

    def _read_live(self) -> tuple[list[dict[str, Any]], str]:
        from trackside_daemon.bridges.prometheus_runs import live_runs  # most daemons ask no server
        from trackside_daemon.http_client.http_request import read_headers, tls_context

        server = self._settings.prometheus
        # Of several requests, one asks the server; others would occupy all threads of the API if it is slow.
        if not self._lock.acquire(blocking=False):
            return self._live[1:]
        try:
            at, runs, problem = self._live
            if server.url and time.monotonic() - at >= LIVE_SECONDS:
                try:
                    headers = read_headers(server.headers_file, "fleet.prometheus.headers-file")
                    context = tls_context(server.ca_file, "fleet.prometheus.ca-file")
                    runs, problem = live_runs(server.url, headers, context, self._page), ""
                except (SendError, SettingError) as error:
                    runs, problem = [], f"Live runs are missing: {error}"
                self._live = time.monotonic(), runs, problem
            return runs, problem
        finally:
            self._lock.release()

    def _read_archive(self) -> tuple[list[dict[str, Any]], str]:
        """Return what was read last; begin to read it again if that is due."""
        at, runs, problem = self._ended
        if not self._archive:
            return [], ""
        is_due = time.monotonic() - at >= ARCHIVE_SECONDS
        if is_due and (self._reading is None or not self._reading.is_alive()):
            self._reading = threading.Thread(target=self._ask_archive, name="trackside-archive", daemon=True)
            self._reading.start()
        return runs, problem

    def _ask_archive(self) -> None:
        try:
            with CallWorker(MODULE, Archived, name="the process that reads it") as worker:
                found = worker.ask(ArchiveRequest(self._archive), LONGEST_SECONDS)
            runs, problem = found.runs, f"Left out of the archive: {found.left_out[0]}" if found.left_out else ""
        except WorkerFailed as error:
            runs, problem = [], f"Ended runs are missing: {error}"
        self._ended = time.monotonic(), runs, problem

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
