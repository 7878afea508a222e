"""The life cycle of the daemon: start, serve, reload, stop."""

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trackside.os_errors import os_error_text
from trackside_daemon import __version__
from trackside_daemon.alerts.sinks.sink import SinkError
from trackside_daemon.bridges.fleet import Fleet
from trackside_daemon.bridges.otlp.receiver import OtlpCollector
from trackside_daemon.collectors.base import Closes
from trackside_daemon.config.loading import ConfigError
from trackside_daemon.history.directory import mode_warnings
from trackside_daemon.http_client.errors import SettingError
from trackside_daemon.ingest.endpoint import group_id
from trackside_daemon.ingest.push_socket import PushSocket
from trackside_daemon.ingest.worker_handle import WorkerHandle
from trackside_daemon.linux.child_process import import_warnings
from trackside_daemon.linux.signals import SIGNALS, block_signals
from trackside_daemon.linux.socket_address import format_address
from trackside_daemon.nvml.handle.handle import NvmlUnavailable
from trackside_daemon.nvml.handle.wait_for_gpu import wait_for_first_reading
from trackside_daemon.questions.question import Live
from trackside_daemon.service import logging as log
from trackside_daemon.service.alerting import last_attempt
from trackside_daemon.service.assembly import Parts, StartError
from trackside_daemon.service.config import Config, needs_restart
from trackside_daemon.service.finding_sources import alert_names
from trackside_daemon.service.status import DaemonStatus, build_info
from trackside_daemon.service.systemd import Notifier, Watchdog
from trackside_daemon.web.api.agents import AgentsApi
from trackside_daemon.web.api.alerts import AlertsApi
from trackside_daemon.web.api.captures import CapturesApi
from trackside_daemon.web.api.daemon import DaemonApi, GpuApi
from trackside_daemon.web.api.history import HistoryApi
from trackside_daemon.web.api.history_access import HistoryAccess
from trackside_daemon.web.api.machine_history import MachineApi
from trackside_daemon.web.api.openapi import document
from trackside_daemon.web.api.overview.handlers import OverviewApi
from trackside_daemon.web.api.overview.overview import Overview
from trackside_daemon.web.api.processes import ProcessesApi
from trackside_daemon.web.api.state_json import live_runs
from trackside_daemon.web.api.waits import Waits, poll_runs
from trackside_daemon.web.app import WebApp
from trackside_daemon.web.http.address import AddressError, is_loopback, security_warnings, write_url_file
from trackside_daemon.web.http.auth_token import STORED, Token
from trackside_daemon.web.http.config_file import ConfigFile
from trackside_daemon.web.http.server import WebServer

# The sources of series other than the collectors.
SOURCES = (
    "training",
    "alerts",
    "notifications",
    "captures",
    "checkpoints",
    "bridges",
    "ingest",
    "pipeline",
    "history",
    "sampler",
    "trackside",
)

# New objects before a garbage collection. A tick makes and drops thousands that need none; at some 100 bytes each,
# the others add up to 5 MB.
GARBAGE = 50_000

# The switch interval of threads: a scrape needs several turns, while the pipeline computes without a pause. With 0.3 ms a scrape
# is faster still, but a thousand clients that connect anew wait much longer.
TURN_SECONDS = 0.001

# Heaps that threads share, and the number of this parameter in glibc's malloc.h. By default, each of the daemon's threads
# has its own, which together cost 0.5 MiB.
HEAPS = 2
M_ARENA_MAX = -8

logger = logging.getLogger("trackside")


class StartAndStop(NamedTuple):
    """A start and a stop of the daemon, of the same thing where both are given."""

    start: Callable[[], object] | None = None  # starts it; None if it is open from the beginning
    stop: Callable[[], object] | None = None  # stops it; None if there is nothing to stop


class PartList:
    """Parts in the order in which they start; they stop in the reverse order."""

    def __init__(self, parts: Iterable[StartAndStop]) -> None:
        self._parts = tuple(parts)
        self._started = 0

    def start(self) -> None:
        """Start all parts; after the first that fails, no other starts."""
        for part in self._parts:
            if part.start is not None:
                part.start()
            self._started += 1

    def stop(self) -> None:
        """Stop the parts that have started or were open from the beginning, all of them even if one fails."""
        with ExitStack() as stops:
            for number, part in enumerate(self._parts):
                if part.stop is not None and (part.start is None or number < self._started):
                    stops.callback(part.stop)


class Daemon:
    """One daemon.

    Args:
        config: The settings.
        reload: Loads them again.
        push_socket: The push socket, bound early so that clients find it.
        ingest_worker: The process that serves the push socket.
        listener: The bound socket of the web server.

    Raises:
        StartError: A rule or a sink cannot be used, or the API's token cannot be written.
        WebConfigError: The web configuration cannot be used.
        HistoryError: The history cannot be opened.
    """

    def __init__(
        self,
        config: Config,
        reload: Callable[[], Config],
        push_socket: PushSocket,
        ingest_worker: WorkerHandle,
        listener: socket.socket,
    ) -> None:
        _share_heaps()  # before any part starts a thread
        # Early, because it removes the service manager's variables from the environment that child processes inherit.
        self._notifier = Notifier()
        self._config = config
        self._load = reload
        self._push_socket = push_socket
        self._loaded = config  # last, though some changes need a restart
        self._web_config = ConfigFile(config.web.config.file)
        self._address = format_address(listener)
        self._url = f"{self._web_config.scheme}://{self._address}"
        self._reloaded_at = time.time()
        self._reloaded = True
        self._failed = False
        self._parts = Parts(config, push_socket, ingest_worker, self._url)
        self._otlp, otlp_address = _otlp_server(config, self._parts.otlp, push_socket.token)
        ways = {"otlp_endpoint": otlp_address, "textfile_directory": config.collector.textfile.directory or None}
        self._status = DaemonStatus(
            self._parts, self._address, self._url, push_socket.endpoints, gpus=config.collector.gpu.enabled, ways=ways
        )
        self._token = _make_token(push_socket.token, self._parts.history.database.path.with_name(STORED))
        self._address_file = push_socket.token.with_suffix(".address")
        self._fleet = Fleet(config.fleet, config.bridges.parquet.url)
        self._access = HistoryAccess(self._parts.history.database, self._parts.history.writer, self._live())
        self._overview = self._overview_api(self._access)
        self._waits = Waits(partial(poll_runs, self._parts.state, self._parts.history.database))
        self._web = WebServer(self._web_app(self._access), listener, self._web_config)
        self._watchdog = Watchdog(
            self._notifier,
            {"sampler": self._parts.sampler.behind, "web": self._web.loop_delay},
            {"pipeline": self._parts.pipeline.behind, "ingest": self._parts.ingest.behind},
            disk=self._parts.history.writer.busy_seconds,
            status=self._status.line,
        )
        self._web_config.reloaded = self._tick_build_info
        self._order = self._ordered()

    @property
    def link(self) -> str:
        """The dashboard's URL, with the token if one is needed: in the fragment, which servers neither get nor log."""
        return f"{self._url}/" + ("" if self._web_config.authenticates else f"#token={self._token.value}")

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; SIGHUP reloads.

        Returns:
            The exit status: 0 after a requested stop, 1 after a failure of a part.

        Raises:
            StartError: A GPU is required, and there is none.
        """
        block_signals()
        threading.excepthook = self._thread_failed
        try:
            received = self._wait_for_gpu() if self._config.require_gpu else None
            if received is None:
                self._start()
                # Now that the parts exist: what is frozen is never examined again by the garbage collector.
                _settle()
                self._notifier.ready(self._status.line())
                self._watchdog.start()
                while (received := signal.sigwait(SIGNALS)) == signal.SIGHUP:
                    self.reload()
            logger.info("stopping on %s", signal.Signals(received).name)
        finally:
            self._stop()
        return 1 if self._failed else 0

    def reload(self) -> str:
        """Load the configuration again, and apply the settings that can change while the daemon runs.

        Returns:
            The error, with which the old configuration stays; empty on success.
        """
        wrong = ""
        self._notifier.reloading()
        try:
            config = self._load()
            # Before anything changes, so that a sink that cannot be used leaves the old configuration whole.
            sinks = self._parts.alerting.sinks(config.alerts)
        except (ConfigError, SinkError) as error:
            wrong = str(error)
            logger.error("the configuration is not reloaded: %s", wrong)  # noqa: TRY400  a user's slip, no traceback
        else:
            if fixed := needs_restart(self._config, config):
                logger.warning("changes of %s need a restart", ", ".join(fixed))
            log.set_up(config.log.level, config.log.format)
            self._parts.reconfigure(config, sinks)
            self._loaded, self._reloaded_at = config, time.time()
            logger.info("configuration reloaded")
        # After RELOADING=1, systemd waits for READY=1 even when the reload failed.
        self._reloaded = not wrong
        self._tick_build_info()
        self._notifier.ready(self._status.line())
        return wrong

    def _live(self) -> Live:
        parts = self._parts
        return Live(
            prices=lambda: parts.costs.prices,  # those of the last reload
            straggler_ratio=lambda: self._config.alerts.thresholds.straggler_ratio,
            runs=lambda: live_runs(parts.state, time.monotonic()),
            captures=parts.captures.captures.known,
            silences=parts.alerting.silences.active,
            fleet=self._fleet.runs,
            hang=parts.alerting.hangs.judge_now,
            batches=parts.alerting.batches,
        )

    def _overview_api(self, access: HistoryAccess) -> OverviewApi:
        parts = self._parts
        fleet = self._fleet.is_configured
        overview = Overview(parts.state, parts.rates, parts.alerting.firing, parts.history.database, fleet=fleet)
        return OverviewApi(parts.state, access, overview)

    def _web_app(self, access: HistoryAccess) -> Any:
        parts, web = self._parts, self._config.web
        captures = CapturesApi(parts.captures.captures, access, partial(last_attempt, parts.history))
        app = WebApp(
            parts.state,
            sources=[*(collector.name for collector in parts.collectors), *SOURCES],
            ready=self._status.is_ready,
            profile=self._config.limits.profile,
            access=access,
            apis=[
                DaemonApi(self._status.as_json, self._token, self._overview.disconnect, document),
                HistoryApi(
                    access,
                    parts.requests.ask,
                    parts.requests.ask_layers,
                    audit=parts.checkpoints.audit_again,
                    deleted=parts.captures.captures.sweep,
                ),
                AlertsApi(
                    access,
                    parts.alerting.silences,
                    parts.alerting.tester,
                    parts.pipeline.push,
                    alert_names(self._config.alerts),
                ),
                captures,
                AgentsApi(access, captures, self._waits, actions=web.agent_actions),
                GpuApi(parts.nvml, parts.gpu.forget),
                MachineApi(parts.machine, access),
                ProcessesApi(lambda: parts.process.processes, parts.state, Path(self._config.path.procfs)),
                self._overview,
            ],
            reload=self.reload if web.enable_lifecycle else None,
        )
        hosts = (*web.allowed_hosts, self._address, web.listen_address)
        return app.build(
            token=self._token,
            hosts=hosts,
            public_read=web.public_read,
            any_host=not is_loopback(self._address),
            origins=web.cors_origins,
        )

    def _ordered(self) -> PartList:
        """Return the parts in the order in which they start.

        They stop in the order of the data flow: every queued sample is written, and the last message acknowledged.
        """
        parts = self._parts
        captures, kineto = parts.captures.captures, parts.captures.kineto
        return PartList(
            [
                StartAndStop(stop=self._remove_files),
                *(
                    StartAndStop(stop=collector.close)
                    for collector in parts.collectors
                    if isinstance(collector, Closes)
                ),
                StartAndStop(stop=parts.nvml.close),
                StartAndStop(stop=parts.history.close),  # requests to the web server read it
                StartAndStop(stop=parts.requests.close),  # pages ask clients for stacks
                StartAndStop(stop=self._access.close),
                StartAndStop(stop=self._web.stop),  # serves until the last sample is written
                StartAndStop(stop=parts.ingest.close),  # acknowledges what the history has written last
                StartAndStop(parts.mirrors.start, parts.mirrors.stop),  # they send what was written last
                StartAndStop(parts.history.start, parts.history.stop),
                StartAndStop(partial(parts.lost_runs.end_missed, parts.pipeline.accept)),
                *(StartAndStop(reports.start, reports.stop) for reports in (parts.reports,) if reports is not None),
                StartAndStop(parts.alerting.start, parts.alerting.stop),
                StartAndStop(parts.pipeline.start, parts.pipeline.stop),
                StartAndStop(self._tick_build_info),
                StartAndStop(captures.start),  # before ranks can begin one
                StartAndStop(parts.ingest.start, parts.ingest.stop),
                # These ask ranks.
                StartAndStop(parts.resumes.start, parts.resumes.stop),
                StartAndStop(parts.checkpoints.start, parts.checkpoints.stop),
                StartAndStop(stop=captures.stop),
                StartAndStop(parts.alerting.start_evidence, parts.alerting.stop_evidence),
                StartAndStop(parts.spools.start, parts.spools.stop),
                StartAndStop(parts.sampler.start, parts.sampler.stop),
                StartAndStop(stop=self._waits.stop),
                StartAndStop(stop=self._overview.stop),
                StartAndStop(parts.lost_runs.start, parts.lost_runs.stop),  # its thread writes to the history
                StartAndStop(kineto.start),
                StartAndStop(stop=kineto.stop),
                *(StartAndStop(server.start, server.stop) for server in (self._otlp,) if server is not None),
                StartAndStop(self._web.start),
                # Not before the server accepts requests: other commands find the daemon by this file.
                StartAndStop(partial(write_url_file, self._url, self._address_file)),
            ]
        )

    def _start(self) -> None:
        self._order.start()
        parts = self._parts
        endpoints = ", ".join(self._push_socket.endpoints)
        logger.info("trackside %s serves %s and accepts pushes at %s", __version__, self._url, endpoints)
        logger.info("the history is %s", parts.history.database.path)
        storage = mode_warnings(parts.history.database.path.parent) if parts.history.database.is_open else ()
        for line in (*security_warnings(self._address, self._web_config), *storage, *import_warnings(Path.cwd())):
            logger.warning("%s", line)

    def _stop(self) -> None:
        self._watchdog.stop()
        self._notifier.stopping()
        self._order.stop()

    def _tick_build_info(self) -> None:
        end = self._web_config.certificate_end
        self._parts.pipeline.tick([build_info(self._loaded, end, reloaded=self._reloaded, at=self._reloaded_at)])

    def _remove_files(self) -> None:
        self._token.remove()
        with suppress(OSError):
            self._address_file.unlink()

    def _wait_for_gpu(self) -> int | None:
        self._notifier.status("waits for a GPU")
        try:
            return wait_for_first_reading(self._parts.nvml)
        except NvmlUnavailable as error:
            raise StartError(f"--require-gpu: {error}") from error

    def _thread_failed(self, problem: Any) -> None:
        """Stop the daemon when a thread of it fails: half a monitor would be trusted like a whole one."""
        self._failed = True
        name = getattr(problem.thread, "name", "a thread")
        logger.error("%s failed: %r", name, problem.exc_value, exc_info=problem.exc_value)
        # The main thread waits in sigwait(), which only a signal ends.
        os.kill(os.getpid(), signal.SIGTERM)


def _otlp_server(config: Config, collector: OtlpCollector | None, token: Path) -> tuple[WebServer | None, str | None]:
    """Return the server of ``otlp.endpoint`` and its address; the address only if who may push may send there."""
    if collector is None:
        return None, None
    from trackside_daemon.web.otlp import otlp_server

    try:
        server, address = otlp_server(config.otlp, collector, group_id(config.push.group, token))
    except (AddressError, SettingError) as error:
        raise StartError(str(error)) from None
    return server, None if config.otlp.token_file else address


def _make_token(path: Path, stored: Path) -> Token:
    try:
        return Token(path, stored)
    except OSError as error:
        reason = os_error_text(error)
        raise StartError(f"{path}: {reason}; the daemon stores the API's token there, next to the socket") from error


def _share_heaps() -> None:
    """Let the threads that start from now on share the heaps of C libraries."""
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):  # only in glibc and in libraries that imitate it
        libc.mallopt(M_ARENA_MAX, HEAPS)


def _settle() -> None:
    """Exempt all objects that exist by now from garbage collection, and set both intervals."""
    # First, because garbage that is frozen would never be freed.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    sys.setswitchinterval(TURN_SECONDS)
