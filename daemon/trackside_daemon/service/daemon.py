"""Builds the parts, runs them, and stops them in order: the only file that knows them all."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside.environment.identity import boot_id
from trackside_daemon import __version__
from trackside_daemon.alerts.rules.custom import RuleError
from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkError
from trackside_daemon.collectors.base import Closes
from trackside_daemon.collectors.gpu.gpu import GpuCollector, reading_timeout
from trackside_daemon.collectors.gpu.gpu_event_log import GpuEventLog
from trackside_daemon.collectors.gpu.nvml import NvmlCollector, sees_part
from trackside_daemon.collectors.process.process import ProcessCollector
from trackside_daemon.collectors.process.ranks import PEAK_FLOPS
from trackside_daemon.config.loading import ConfigError
from trackside_daemon.history.directory import UnreadableError, prepare, writable_directory
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.record.writer import SAMPLES as STORED
from trackside_daemon.history.record.writer import SIZE
from trackside_daemon.history.recorder import Recorder
from trackside_daemon.ingest.orphaned_spools import Spools
from trackside_daemon.ingest.process_watch import Watch
from trackside_daemon.ingest.server import Server
from trackside_daemon.ingest.sessions import DUPLICATES, GAPS, MESSAGES, REJECTED, Sessions
from trackside_daemon.linux.signals import SIGNALS, block_signals
from trackside_daemon.model.state import State
from trackside_daemon.nvml.handle.handle import Nvml, NvmlUnavailable, worker_settings
from trackside_daemon.nvml.handle.wait_for_gpu import wait_for_first_reading
from trackside_daemon.pipeline.pipeline import FAILURES, Pipeline
from trackside_daemon.sampling.collectors import PROC, collectors
from trackside_daemon.sampling.sampler import DURATION, LAST_SUCCESS, SUCCESS, Sampler
from trackside_daemon.service import interpreter
from trackside_daemon.service import logging as log
from trackside_daemon.service.alerting import Alerting
from trackside_daemon.service.build_info import about
from trackside_daemon.service.config import needs_restart
from trackside_daemon.service.hardware import hardware
from trackside_daemon.service.systemd import Notifier
from trackside_daemon.service.watchdog import Pulse
from trackside_daemon.training.limits import Limits
from trackside_daemon.training.liveness import Liveness
from trackside_daemon.training.moment import Moment
from trackside_daemon.training.rank import End
from trackside_daemon.training.runs import Runs
from trackside_daemon.training.verdict import UNKNOWN
from trackside_daemon.web.api.alerts import AlertsApi
from trackside_daemon.web.api.current_values import family_values
from trackside_daemon.web.api.gpu import GpuApi
from trackside_daemon.web.api.history import HistoryApi
from trackside_daemon.web.api.history_access import HistoryAccess
from trackside_daemon.web.api.overview.overview import Overview
from trackside_daemon.web.api.overview.pages import OverviewApi
from trackside_daemon.web.api.overview.rates import RateTracker
from trackside_daemon.web.api.processes import ProcessesApi
from trackside_daemon.web.app import WebApp
from trackside_daemon.web.http.address import format_address, security_warnings, write_url_file
from trackside_daemon.web.http.auth_token import Token
from trackside_daemon.web.http.config_file import ConfigFile
from trackside_daemon.web.http.server import WebServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.ingest.server import PushSocket
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.service.config import Config

SOURCES = ("training", "alerts", "notifications", "ingest", "pipeline", "history", "sampler", "trackside")
"""Who else has series on the page."""

RETURN_SECONDS = 60.0
"""A run of a daemon before this one that has not come back by then is lost, unless its process lives here."""

logger = logging.getLogger("trackside")


class StartError(Exception):
    """The daemon cannot start as it was asked to; the message says why and what to do."""


class Daemon:
    """One daemon.

    Args:
        config: As loaded.
        reload: Loads it again.
        push_socket: Bound already, so that clients find it early.
        listener: Bound already; HTTP is served on it.

    Raises:
        StartError: The API's token cannot be written.
        WebConfigError: The web configuration cannot be used.
        HistoryError: There is no history to be had.
    """

    def __init__(
        self, config: Config, reload: Callable[[], Config], push_socket: PushSocket, listener: socket.socket
    ) -> None:
        self._notifier = Notifier()
        self._config, self._load = config, reload
        self._push_socket = push_socket
        self._web_config, self._address = ConfigFile(config.web.config.file), format_address(listener)
        self._url = f"{self._web_config.scheme}://{self._address}"
        self._started = self._reloaded_at = time.time()
        self._reloaded, self._failed, self._serving, self._ready = True, False, False, False
        self._state = State()
        self._rates = RateTracker(self._state)
        self._nvml = Nvml(worker_settings(config.collector.gpu))
        self._gpu = GpuCollector(self._nvml, reading_timeout(config.sample.interval), GpuEventLog())
        on, sys = config.collector, Path(config.path.sysfs)
        self._counts = NvmlCollector(
            self._nvml, self._gpu, on.gpu.expected, None if on.gpu.simulate else Path("/sys"), whole=not sees_part()
        )
        self._process = ProcessCollector(lambda: self._runs.members, PROC, sys, smaps=on.process.smaps)
        directory = prepare(Path(config.storage.path) if config.storage.path else None)
        self._collectors = collectors(
            on,
            config.path,
            directory,
            lambda: self._runs.members,
            process=self._process,
            gpu=self._gpu,
            nvml=self._counts,
        )
        self._history = self._open_history(directory)
        self._liveness = Liveness()
        limits = Limits(**config.limits.model_dump())
        self._runs: Runs = Runs(
            *(limits, config.run.linger, self._liveness, self._history.last_attempt),
            stalls=lambda run, attempt: self._alerting.stalls(run, attempt),  # noqa: PLW0108  made later
            before=self._history.earlier_attempts,
            peak=lambda run, rank: self._state.some(time.monotonic(), [(PEAK_FLOPS, (run, str(rank)))])[0],
        )
        try:
            self._alerting = self._build_alerting()
        except (RuleError, SinkError) as error:
            raise StartError(str(error)) from error
        alerting = self._alerting
        self._pipeline = Pipeline(self._state, self._history, alerting.watchers, alerting.book, told=alerting.told)
        self._spools = Spools(push_socket.endpoints)
        watch = Watch(PROC, sys)
        self._sessions = Sessions(
            *(self._runs, self._history.session, boot_id(Path("/proc")), watch.meet),
            lambda: {**push_socket.rejected(), **self._spools.rejected()},
        )
        self._ingest = Server(
            push_socket,
            self._sessions,
            self._pipeline.push,
            self._pipeline.has_room,
            lambda: self._history.writer.stuck,
            watch=watch,
        )
        self._sampler = Sampler(*(self._collectors, self._tick, config.sample.interval), reports=self._process.reports)
        self._sample_every(config.sample.interval)
        self._ended = threading.Event()
        self._forgetting = threading.Thread(target=self._forget, name="trackside-forget", daemon=True)
        self._token = _make_token(push_socket.token)
        self._address_file = push_socket.token.with_suffix(".address")
        self._web = WebServer(self._pages(), listener, self._web_config)
        self._pulse = Pulse(
            self._notifier,
            {"sampler": self._sampler.behind, "web": self._web.loop_delay},
            {"pipeline": self._pipeline.behind, "ingest": self._ingest.behind},
            disk=self._history.writer.busy_seconds,
            status=self._line,
        )

    @property
    def link(self) -> str:
        """The dashboard's address, with the token where one is needed: in the fragment, which no server sees or logs."""
        return f"{self._url}/" + ("" if self._web_config.authenticates else f"#token={self._token.value}")

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; SIGHUP reloads.

        Returns:
            The exit status: 0 when stopped as asked, 1 when a part failed.

        Raises:
            StartError: A GPU is required, and there is none.
        """
        block_signals()
        threading.excepthook = self._thread_failed
        try:
            received = self._await_gpu() if self._config.require_gpu else None
            if received is None:
                self._start()
                interpreter.settle()
                self._notifier.ready(self._line())
                self._pulse.start()
                while (received := signal.sigwait(SIGNALS)) == signal.SIGHUP:
                    self.reload()
            logger.info("stopping on %s", signal.Signals(received).name)
        finally:
            self._stop()
        return 1 if self._failed else 0

    def reload(self) -> str:
        """Read the configuration again, and use of it what can change while running.

        Returns:
            What is wrong with it, in which case the old one stays; empty when nothing is.
        """
        wrong = ""
        self._notifier.reloading()
        try:
            new = self._load()
            ways = self._alerting.sinks(new.alerts)
        except (ConfigError, SinkError) as error:
            wrong = str(error)
            logger.error("the configuration is not reloaded: %s", wrong)  # noqa: TRY400  a user's slip, no traceback
        else:
            if fixed := needs_restart(self._config, new):
                logger.warning("changes of %s need a restart", ", ".join(fixed))
            log.set_up(new.log.level, new.log.format)
            self._runs.linger = new.run.linger
            self._history.writer.set_bounds(Bounds(new.storage.retention.size, new.storage.retention.age))
            self._history.interval = new.storage.interval
            self._alerting.change(new.alerts, ways)
            self._sample_every(new.sample.interval)
            self._reloaded_at = time.time()
            logger.info("configuration reloaded")
        self._reloaded = not wrong
        self._pipeline.tick([about(reloaded=self._reloaded, at=self._reloaded_at)])
        self._notifier.ready(self._line())
        return wrong

    def _line(self) -> str:
        """What it does now, for people."""
        runs = len({one.run_id for one in self._runs.members})
        return f"serves {self._url}, {runs} run{'' if runs == 1 else 's'} on this machine"

    def _tick(self, batches: Sequence[Batch]) -> None:
        """What was sampled goes into the pipeline, and with it how the sinks of alerts are; what came before is followed."""
        self._pipeline.tick([*batches, self._alerting.batch()])
        self._rates.record(time.monotonic())

    def _sample_every(self, seconds: float) -> None:
        """From the next tick on. The worker's pace follows, and the wait for it, a quarter of that at most."""
        self._sampler.interval = self._nvml.interval = seconds
        self._gpu.timeout = reading_timeout(seconds)

    def _open_history(self, directory: Path) -> Recorder:
        storage = self._config.storage
        return Recorder(
            directory,
            Bounds(storage.retention.size, storage.retention.age),
            synchronous=storage.synchronous,
            interval=storage.interval,
            machine=[one.name for one in self._collectors if one is not self._counts],  # whose calls are many
            acknowledge=lambda receipt: self._ingest.acknowledge(receipt),  # noqa: PLW0108  made later
            request_resend=lambda session: self._ingest.renounce(session),  # noqa: PLW0108  the same
            hardware=partial(hardware, self._state),
            jsonl=writable_directory(Path(storage.jsonl), "--storage.jsonl") if storage.jsonl else None,
        )

    def _build_alerting(self) -> Alerting:
        return Alerting(
            self._config.alerts,
            self._state,
            self._history,
            DaemonInfo(socket.gethostname(), f"{self._url}/"),
            ask=lambda run, ranks: self._ingest.ask("stacks?", run, ranks),
            processes=lambda: self._process.processes,
            push=lambda batches: self._pipeline.push(batches),  # noqa: PLW0108  made later
            command=lambda run, steps: self._ingest.command("layers?", run, steps),
        )

    def _pages(self) -> Any:
        web = self._config.web
        kept = HistoryAccess(self._history.database, self._history.writer)
        overview = Overview(self._state, self._rates, self._alerting.firing, self._history.database)
        self._overview = OverviewApi(self._state, kept, overview)
        pages = WebApp(
            self._state,
            sources=[*(one.name for one in self._collectors), *SOURCES],
            ready=self._is_ready,
            status=self._status,
            history=HistoryApi(self._state, kept, self._ingest.ask, self._ingest.ask_layers),
            alerts=AlertsApi(kept, self._alerting.silences, self._alerting.trial, self._pipeline.push),
            gpu=GpuApi(self._nvml, self._gpu.forget),
            processes=ProcessesApi(lambda: self._process.processes),
            overview=self._overview,
            reload=self.reload if web.enable_lifecycle else None,
        )
        hosts = (*web.allowed_hosts, self._address, web.listen_address)
        return pages.build(token=self._token, hosts=hosts, public_read=web.public_read)

    def _is_ready(self) -> bool:
        """Whether each collector has run once, with or without success."""
        self._ready = self._ready or len(self._state.values(time.monotonic(), SUCCESS)[0]) == len(self._collectors)
        return self._ready

    def _start(self) -> None:
        self._history.start()
        self._begin_after_others()
        self._alerting.start()
        self._pipeline.start()
        self._pipeline.tick([about(reloaded=self._reloaded, at=self._reloaded_at)])
        self._ingest.start()
        self._spools.start()
        self._forgetting.start()
        self._sampler.start()
        self._web.start()
        write_url_file(self._url, self._address_file)
        self._serving = True
        endpoints = ", ".join(self._push_socket.endpoints)
        logger.info("trackside %s serves %s and takes pushes at %s", __version__, self._url, endpoints)
        logger.info("the history is %s", self._history.database.path)
        for line in security_warnings(self._address, self._web_config):
            logger.warning("%s", line)

    def _begin_after_others(self) -> None:
        """Before anybody speaks: end what ended while no daemon was there, but for what a spool is still to tell of."""
        left, now = self._spools.heads(), Moment(time.time(), time.monotonic())
        for process, ended in self._history.abandon(lambda one: self._liveness.is_gone(one) is True, left):
            for batch in self._runs.missed(process, process.attempt, End("lost", UNKNOWN, ended), now):
                self._pipeline.accept(batch)
        with suppress(UnreadableError):
            for batch in self._sessions.foretell(left, now):
                self._pipeline.accept(batch)

    def _stop(self) -> None:
        """In order: no new samples, no new pushes, everything queued written, the last of it acknowledged, no more pages."""
        self._pulse.stop()
        self._notifier.stopping()
        self._ended.set()
        if self._forgetting.is_alive():
            self._forgetting.join()
        if self._serving:
            self._overview.stop()
            self._sampler.stop()
            self._spools.stop()
            self._alerting.stop_asking()
            self._ingest.stop()
            self._pipeline.stop()
            self._alerting.stop()
            self._history.stop()
        self._ingest.close()
        if self._serving:
            self._web.stop()
        self._history.close()
        self._nvml.close()
        for one in self._collectors:
            if isinstance(one, Closes):
                one.close()
        self._token.remove()
        with suppress(OSError):
            self._address_file.unlink()

    def _forget(self) -> None:
        """End the runs of a daemon before this one that do not go on.

        At once where the process is gone and has left no bye in a spool, later where it has not come back.
        """
        self._spools.wait(RETURN_SECONDS)
        self._history.abandon(lambda process: self._liveness.is_gone(process) is True)
        while not self._ended.wait(RETURN_SECONDS):
            self._history.abandon(lambda process: self._liveness.is_gone(process) is not False)

    def _await_gpu(self) -> int | None:
        self._notifier.status("waits for a GPU")
        try:
            return wait_for_first_reading(self._nvml)
        except NvmlUnavailable as error:
            raise StartError(f"--require-gpu: {error}") from error

    def _status(self) -> dict[str, Any]:
        families = (SUCCESS, DURATION, LAST_SUCCESS, MESSAGES, REJECTED, DUPLICATES, GAPS, FAILURES, SIZE, STORED)
        return {
            "version": __version__,
            "started": self._started,
            "listen_address": self._address,
            "url": self._url,
            "push_endpoints": list(self._push_socket.endpoints),
            "storage_path": str(self._history.database.path.parent),
            **(self._counts.status() if self._config.collector.gpu.enabled else {"gpus": [], "nvml": None}),
            "collectors": self._sampler.states(),
            "notifications": self._alerting.standings(),
            "metrics": family_values(self._state, time.monotonic(), *families),
        }

    def _thread_failed(self, problem: Any) -> None:
        """A part that dies takes the daemon with it: half a monitor would be trusted as a whole one."""
        self._failed = True
        name = getattr(problem.thread, "name", "a thread")
        logger.error("%s failed: %r", name, problem.exc_value, exc_info=problem.exc_value)
        os.kill(os.getpid(), signal.SIGTERM)


def _make_token(path: Path) -> Token:
    try:
        return Token(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StartError(f"{path}: {reason}; the API's token is kept there, beside the socket") from error
