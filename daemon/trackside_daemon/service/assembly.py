"""Assembles the daemon: builds every part, and connects each with those that come after it."""

import logging
import os
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trackside.environment.identity import boot_id
from trackside_daemon.alerts.rules.custom import RuleError
from trackside_daemon.alerts.settings import key_roles
from trackside_daemon.alerts.sinks.sink import DaemonInfo, Sink, SinkError
from trackside_daemon.alerts.stages import FindingSource
from trackside_daemon.bridges.mirrors.supervisor import Mirrors
from trackside_daemon.bridges.otlp.receiver import OtlpCollector
from trackside_daemon.captures.captures import Captures
from trackside_daemon.checkpoints.audit.request import MODULE as AUDIT
from trackside_daemon.checkpoints.audit.request import Audited, Scanned
from trackside_daemon.checkpoints.checkpoints import CheckpointFollower
from trackside_daemon.checkpoints.directories import KEPT_SECONDS
from trackside_daemon.checkpoints.resumes import Resumes
from trackside_daemon.collectors.foreign import ForeignFamilies
from trackside_daemon.collectors.gpu.gpu import GpuCollector, GpuEventLog, reading_timeout
from trackside_daemon.collectors.gpu.nvml_worker import NvmlCollector, sees_part
from trackside_daemon.collectors.host.host import CpuCollector
from trackside_daemon.collectors.process.process import ProcessCollector
from trackside_daemon.diagnosis.accounts import EVERY, goodput_batch, read_goodput
from trackside_daemon.diagnosis.costs import LiveCosts, read_begin
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.step_percentiles import StepPercentiles
from trackside_daemon.documents.diagnosis import lines
from trackside_daemon.history.directory import (
    UnavailableError,
    default_directory,
    named_directory,
    prepare,
    writable_directory,
)
from trackside_daemon.history.media.store import Quotas
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.history.training_counters import TrainingCounters
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.ingest_thread import IngestThread, ProcessWatch
from trackside_daemon.ingest.orphaned_spools import OrphanedSpools
from trackside_daemon.ingest.push_socket import PushSocket
from trackside_daemon.ingest.requests import IngestRequests
from trackside_daemon.ingest.run_owners import RunOwners
from trackside_daemon.ingest.worker_handle import WorkerHandle
from trackside_daemon.linux.process_limits import worker_bytes
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.model.families import gpu, training
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.rank_process import RankProcesses
from trackside_daemon.model.state import State
from trackside_daemon.nvml.handle.handle import Nvml, worker_settings
from trackside_daemon.pipeline.pipeline import BatchQueue, Pipeline
from trackside_daemon.sampling.collectors import PROC, collectors
from trackside_daemon.sampling.sampler import Sampler
from trackside_daemon.service.alerting import WRITTEN_SECONDS, Alerting
from trackside_daemon.service.captures import CaptureParts
from trackside_daemon.service.config import Config
from trackside_daemon.service.lost_runs import LostRuns
from trackside_daemon.service.reports import Reports
from trackside_daemon.service.run_readings import RunReadings
from trackside_daemon.training.admission import PageLimits
from trackside_daemon.training.liveness import Liveness
from trackside_daemon.training.runs import Runs
from trackside_daemon.web.api.machine_history import MachineHistory
from trackside_daemon.web.api.overview.rates import RateTracker

DIAGNOSIS_LINES = 12  # with the two costliest causes, and the line that is left out


class StartError(Exception):
    """The daemon cannot start as configured; the message states why and what to do."""


class Parts:
    """The parts of one daemon, without the web server, built in the order in which they need each other.

    Args:
        config: The settings.
        push_socket: The bound socket.
        ingest_worker: The process that serves it; the thread of the push socket ends it.
        url: The address of the web server, for notifications.

    Attributes:
        state: The newest values.
        rates: Rates of the counters, for the dashboard; *machine* has the last hour of host and GPUs, and *counters* records
            those of the trainings.
        ranks: The training processes of this machine.
        requests: Requests of other threads to ingest.
        nvml: The worker process that reads the GPUs.
        gpu: The collector of the GPUs; *nvml_calls* is that of the NVML calls.
        process: The collector of processes.
        collectors: All collectors that are enabled; *otlp* is that of what is received, None without `otlp.endpoint`.
        history: The history; *mirrors* send it to other tools.
        alerting: Finding sources, active alerts and their listeners.
        reports: Writes the reports of runs that end; None without `reports.path`.
        captures: The captures, and who begins them.
        checkpoints: The checkpoints of the runs on this machine.
        resumes: The verdicts on new attempts.
        runs: The runs; *lost_runs* ends those of an earlier daemon.
        pipeline: The path of all batches.
        spools: Spools of processes that are gone.
        ingest: The thread of the push socket.
        costs: Counts energy and costs of live runs.
        goodput: Reads the goodput of live runs.
        step_percentiles: Makes the percentiles of the steps of live runs.
        sampler: The tick.

    Raises:
        StartError: A rule or a sink cannot be used.
        HistoryError: The history cannot be opened.
    """

    def __init__(self, config: Config, push_socket: PushSocket, ingest_worker: WorkerHandle, url: str) -> None:
        self.state = State(config.limits.ranks)
        self.rates = RateTracker(self.state)
        self.ranks = RankProcesses()
        self.requests = IngestRequests()
        directory = _directory(Path(config.storage.path) if config.storage.path else None)
        self._make_collectors(config, directory)
        # The families of the NVML calls are too many for the history.
        machine = [collector.name for collector in self.collectors if collector is not self.nvml_calls]
        self.history = _history(config, directory, machine, self.state, self.requests)
        self.costs = LiveCosts(
            self.state, self.ranks.get, RunReadings(self.history.database, read_begin), config.cost, config.run.linger
        )
        self.counters = TrainingCounters(self.state, self.history.writer.put)
        self.mirrors = Mirrors(config.bridges.configured(), self.history.database.path)
        liveness = Liveness()
        queue = BatchQueue()
        memory = worker_bytes(config.limits.worker_memory)
        self.captures = CaptureParts(
            config.capture,
            directory,
            memory,
            self.history,
            self.requests,
            state=self.state,
            push=queue.push,
            processes=self.ranks.get,
            step_seconds=partial(_step_seconds, self.rates),
            push_socket=push_socket.token,
            min_free=config.storage.min_free,
        )
        self.reports = _reports(config, directory, self.history, self.costs, memory)
        boot = boot_id(Path("/proc"))
        self.checkpoints = CheckpointFollower(
            config.checkpoint,
            boot,
            self.ranks.get,
            lambda batch: queue.push([batch]),
            auditing=CallWorker(AUDIT, Audited, memory=memory),
            scanning=CallWorker(AUDIT, Scanned, memory=memory),
            proc=Path(config.path.procfs),
        )
        self.checkpoints.restore(self.history.checkpoints(time.time() - KEPT_SECONDS))
        self.resumes = Resumes(
            self.history.database,
            partial(self.history.writer.flush, WRITTEN_SECONDS),
            lambda batch: queue.push([batch]),
            roles=key_roles(config.alerts),
        )
        self.alerting = _alerting(
            config,
            self.state,
            self.history,
            url,
            requests=self.requests,
            queue=queue,
            process=self.process,
            captures=self.captures.captures,
            found=[self.checkpoints, self.resumes],
            reports=self.reports,
            costs=self.costs,
        )
        self.runs = Runs(
            PageLimits(**config.limits.model_dump(exclude={"worker_memory", "profile"})),
            config.run.linger,
            liveness,
            self.history.last_attempt,
            before=self.history.earlier_attempts,
            peak=partial(_peak_flops, self.state),
            processes=self.ranks,
            stalls=self.alerting.restored_stalls(),
        )
        self.pipeline = Pipeline(
            self.state,
            self.history,
            self.alerting.sources,
            self.alerting.active,
            listeners=(*self.alerting.listeners, *self.captures.listeners),
            batch_listeners=() if self.reports is None else (self.reports,),
            stalls=self.runs.accept_stalls,
            queue=queue,
            restore=self.alerting.restoring.step,
        )
        self._make_ingest(config, push_socket, ingest_worker, liveness, boot)
        self.step_percentiles = StepPercentiles(self.state)
        self.goodput = RunReadings(self.history.database, read_goodput, EVERY)
        deliver = partial(_deliver_tick, self)
        self.sampler = Sampler(self.collectors, deliver, config.sample.interval, reports=self.process.reports)
        self._set_interval(config.sample.interval)

    def _make_collectors(self, config: Config, directory: Path) -> None:
        self.nvml = Nvml(worker_settings(config.collector.gpu))
        self.gpu = GpuCollector(self.nvml, reading_timeout(config.sample.interval), GpuEventLog())
        self.nvml_calls = _nvml_calls(config, self.nvml, self.gpu)
        process = config.collector.process
        self.process = ProcessCollector(self.ranks.get, PROC, Path(config.path.sysfs), smaps=process.smaps)
        foreign = ForeignFamilies()
        self.otlp = OtlpCollector(foreign) if config.otlp.endpoint else None
        built = collectors(
            config.collector,
            config.path,
            directory,
            self.ranks.get,
            process=self.process,
            gpu=self.gpu,
            nvml=self.nvml_calls,
            foreign=foreign,
        )
        self.collectors = built if self.otlp is None else [*built, self.otlp]
        cpus = [collector for collector in self.collectors if isinstance(collector, CpuCollector)]
        self.machine = MachineHistory(self.state, lambda: next((cpu.text for cpu in cpus), b""))

    def _make_ingest(
        self, config: Config, push_socket: PushSocket, ingest_worker: WorkerHandle, liveness: Liveness, boot: str
    ) -> None:
        self.spools = OrphanedSpools(push_socket.endpoints)
        watch = ProcessWatch(PROC, Path(config.path.sysfs))
        rejected = partial(_rejected, ingest_worker, self.spools)
        owners = RunOwners(self.history.run_owner, self.spools.writer, config.limits.label_bytes)
        sessions = ClientSessions(
            self.runs,
            self.history.session,
            boot,
            watch.follow,
            rejected,
            owners=owners,
            restarts=lambda: ingest_worker.restarts,
        )
        self.ingest = IngestThread(
            ingest_worker,
            sessions,
            self.pipeline.push,
            self.pipeline.has_room,
            lambda: self.history.writer.stuck,
            requests=self.requests,
            watch=watch,
        )
        self.lost_runs = LostRuns(
            self.history,
            self.runs,
            owners,
            sessions,
            self.spools,
            requests=self.requests,
            liveness=liveness,
            judge=self.alerting.judge,
        )

    def reconfigure(self, config: Config, sinks: Sequence[Sink]) -> None:
        """Apply the settings that can change while the daemon runs; *sinks* are the alerting's of these settings."""
        self.runs.linger = self.costs.linger = config.run.linger
        self.costs.prices = config.cost
        self.history.writer.set_bounds(_bounds(config))
        self.history.interval = config.storage.interval
        self.alerting.reconfigure(config.alerts, sinks)
        self._set_interval(config.sample.interval)

    def _set_interval(self, seconds: float) -> None:
        """Set the interval of the tick and of the NVML worker; the GPU collector waits at most a quarter of it."""
        self.sampler.interval = seconds
        self.nvml.interval = seconds
        self.gpu.timeout = reading_timeout(seconds)


def _nvml_calls(config: Config, nvml: Nvml, gpus: GpuCollector) -> NvmlCollector:
    settings = config.collector.gpu
    sys = None if settings.simulate else Path("/sys")
    return NvmlCollector(nvml, gpus, settings.expected, sys, whole=settings.whole or not sees_part())


def _directory(path: Path | None) -> Path:
    """Return the directory of the history, ready for writing unless the disk does not take it at the moment."""
    try:
        return prepare(path)
    except UnavailableError:  # the history has it logged, and makes the directory later
        return path or default_directory(os.environ, os.getuid())


def _bounds(config: Config) -> Bounds:
    return Bounds(config.storage.retention.size, config.storage.retention.age, config.storage.min_free)


def _history(
    config: Config, directory: Path, machine: Sequence[str], state: State, requests: IngestRequests
) -> HistoryRecorder:
    storage = config.storage
    return HistoryRecorder(
        directory,
        _bounds(config),
        synchronous=storage.synchronous,
        interval=storage.interval,
        machine=machine,
        acknowledge=requests.acknowledge,
        request_resend=requests.restart,
        hardware=partial(_hardware, state),
        jsonl=named_directory(Path(storage.jsonl), "--storage.jsonl") if storage.jsonl else None,
        media=Quotas(storage.media.quota_run, storage.media.quota, storage.min_free),
    )


def _hardware(state: State) -> dict[str, Any]:
    """Return CPUs, memory in bytes, and the names of the GPUs in *state*, in the order of their indexes."""
    (gpus,) = state.values(time.monotonic(), gpu.INFO)
    index, name = gpu.INFO.labels.index("gpu"), gpu.INFO.labels.index("name")
    return {
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": [labels[name] for labels in sorted(gpus, key=lambda labels: int(labels[index]))],
    }


def _reports(
    config: Config, directory: Path, history: HistoryRecorder, costs: LiveCosts, memory: int
) -> Reports | None:
    if config.reports.every and not config.storage.experiment_directory:
        logging.getLogger("trackside").warning(
            "reports.every has no effect: set storage.experiment-directory, the directory that it writes to"
        )
    if not (config.reports.path or config.storage.experiment_directory):
        return None
    return Reports(
        _place(config.reports.path, "reports.path"),
        _place(config.storage.experiment_directory, "storage.experiment-directory"),
        directory,
        lambda: costs.prices,
        history.writer.flush,
        memory=memory,
        every=config.reports.every,
    )


def _place(path: str, setting: str) -> Path | None:
    return writable_directory(Path(path).expanduser().absolute(), setting, make=True) if path else None


def _alerting(
    config: Config,
    state: State,
    history: HistoryRecorder,
    url: str,
    *,
    requests: IngestRequests,
    queue: BatchQueue,
    process: ProcessCollector,
    captures: Captures,
    reports: Reports | None,
    costs: LiveCosts,
    found: Sequence[FindingSource],
) -> Alerting:
    try:
        return Alerting(
            config.alerts,
            state,
            history,
            DaemonInfo(socket.gethostname(), f"{(config.web.external_url or url).rstrip('/')}/"),
            ask=requests.ask,
            processes=lambda: process.processes,
            push=queue.push,
            command=requests.command_layers,
            capture=captures.begin,
            postpones=captures.disturbs,
            diagnose=partial(_diagnosis, history, costs),
            report=reports.link if reports else lambda _: "",
            more=found,
            proc=config.path.procfs,
        )
    except (RuleError, SinkError) as error:
        raise StartError(str(error)) from error


def _diagnosis(history: HistoryRecorder, costs: LiveCosts, run: str) -> list[str]:
    """Return the first lines of a run's diagnosis, without its name."""
    with history.database.reading() as connection:
        return list(lines(diagnose(connection, run, costs.prices)))[1:DIAGNOSIS_LINES]


def _peak_flops(state: State, run: str, rank: int) -> object:
    """Return the exported peak FLOP/s of a rank's GPUs; None if there is no such series."""
    return state.some(time.monotonic(), [(training.PEAK_FLOPS, (run, str(rank)))])[0]


def _rejected(ingest_worker: WorkerHandle, spools: OrphanedSpools) -> dict[str, int]:
    return {**ingest_worker.refused, **spools.rejected()}


def _step_seconds(rates: RateTracker, run: str, attempt: int) -> float | None:
    """Return the duration of a run's steps; None if it is unknown."""
    return rates.run_rates((run, attempt), time.time()).step_seconds


def _deliver_tick(parts: Parts, batches: Sequence[Batch]) -> None:
    """Pass the samples of a tick and of the parts to the pipeline; record the rates of the tick before."""
    own = (parts.alerting.batch(), *parts.captures.batches(), parts.mirrors.batch())
    costs = parts.costs.batch(time.monotonic(), time.time())
    goodput = goodput_batch(parts.state, time.monotonic(), parts.goodput, parts.goodput.read_at)
    percentiles = parts.step_percentiles.batch(time.monotonic())
    parts.pipeline.tick([*batches, *own, parts.checkpoints.samples(), costs, goodput, percentiles])
    parts.captures.tick()
    now, wall = time.monotonic(), time.time()
    parts.rates.record(now)
    parts.machine.record(now, wall)
    parts.counters.record(now, wall)
