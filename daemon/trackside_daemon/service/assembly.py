"""Assembles the daemon: builds every part, and connects each with those that come after it."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.environment.identity import boot_id
from trackside_daemon.alerts.rules.custom import RuleError
from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkError
from trackside_daemon.collectors.gpu.gpu import GpuCollector, reading_timeout
from trackside_daemon.collectors.gpu.gpu_event_log import GpuEventLog
from trackside_daemon.collectors.gpu.nvml import NvmlCollector, sees_part
from trackside_daemon.collectors.process.process import ProcessCollector
from trackside_daemon.collectors.process.ranks import PEAK_FLOPS
from trackside_daemon.history.directory import prepare, writable_directory
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import Recorder
from trackside_daemon.ingest.orphaned_spools import OrphanedSpools
from trackside_daemon.ingest.process_watch import ProcessWatch
from trackside_daemon.ingest.requests import IngestRequests
from trackside_daemon.ingest.server import Server
from trackside_daemon.ingest.sessions import Sessions
from trackside_daemon.model.rank_process import RankProcesses
from trackside_daemon.model.state import State
from trackside_daemon.nvml.handle.handle import Nvml, worker_settings
from trackside_daemon.pipeline.batch_queue import BatchQueue
from trackside_daemon.pipeline.pipeline import Pipeline
from trackside_daemon.sampling.collectors import PROC, collectors
from trackside_daemon.sampling.sampler import Sampler
from trackside_daemon.service.alerting import Alerting
from trackside_daemon.service.hardware import hardware
from trackside_daemon.training.limits import Limits
from trackside_daemon.training.liveness import Liveness
from trackside_daemon.training.runs import Runs
from trackside_daemon.web.api.overview.rates import RateTracker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.ingest.push_socket import PushSocket
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.service.config import Config


class StartError(Exception):
    """The daemon cannot start as configured; the message states why and what to do."""


@dataclass(frozen=True)
class Parts:
    """The parts of one daemon, without the web server, in the order in which they are built.

    Attributes:
        state: The newest values.
        rates: Rates of the counters, for the dashboard.
        nvml: The worker process that reads the GPUs.
        gpu: The collector of the GPUs; *nvml_calls* is that of the NVML calls.
        ranks: The training processes of this machine.
        process: The collector of processes.
        collectors: All collectors that are enabled.
        requests: Requests of other threads to ingest.
        history: The history.
        liveness: Looks up processes.
        alerting: Finding sources, active alerts and their listeners.
        runs: The runs.
        pipeline: The path of all batches.
        spools: Spools of processes that are gone.
        sessions: The protocol with the clients.
        ingest: The thread of the push socket.
        sampler: The tick.
    """

    state: State
    rates: RateTracker
    nvml: Nvml
    gpu: GpuCollector
    nvml_calls: NvmlCollector
    ranks: RankProcesses
    process: ProcessCollector
    collectors: list[Collector]
    requests: IngestRequests
    history: Recorder
    liveness: Liveness
    alerting: Alerting
    runs: Runs
    pipeline: Pipeline
    spools: OrphanedSpools
    sessions: Sessions
    ingest: Server
    sampler: Sampler

    def set_interval(self, seconds: float) -> None:
        """Set the interval of the tick and of the NVML worker; the GPU collector waits at most a quarter of it."""
        self.sampler.interval = seconds
        self.nvml.interval = seconds
        self.gpu.timeout = reading_timeout(seconds)


def assemble(config: Config, push_socket: PushSocket, url: str) -> Parts:
    """Build the parts.

    Args:
        config: The settings.
        push_socket: The bound socket.
        url: The address of the web server, for notifications.

    Raises:
        StartError: A rule or a sink cannot be used.
        HistoryError: The history cannot be opened.
    """
    state = State()
    rates = RateTracker(state)
    ranks = RankProcesses()
    queue = BatchQueue()
    requests = IngestRequests()
    nvml = Nvml(worker_settings(config.collector.gpu))
    gpu = GpuCollector(nvml, reading_timeout(config.sample.interval), GpuEventLog())
    nvml_calls = _nvml_calls(config, nvml, gpu)
    process = ProcessCollector(ranks.get, PROC, Path(config.path.sysfs), smaps=config.collector.process.smaps)
    directory = prepare(Path(config.storage.path) if config.storage.path else None)
    enabled = collectors(config.collector, config.path, directory, ranks.get, process=process, gpu=gpu, nvml=nvml_calls)
    # The families of the NVML calls are too many for the history.
    machine = [collector.name for collector in enabled if collector is not nvml_calls]
    history = _history(config, directory, machine, state, requests)
    liveness = Liveness()
    alerting = _alerting(config, state, history, url, requests=requests, queue=queue, process=process)
    runs = Runs(
        Limits(**config.limits.model_dump()),
        config.run.linger,
        liveness,
        history.last_attempt,
        before=history.earlier_attempts,
        peak=partial(_peak_flops, state),
        processes=ranks,
        stalls=alerting.restored_stalls(),
    )
    pipeline = Pipeline(
        state,
        history,
        alerting.sources,
        alerting.active,
        listeners=alerting.listeners,
        stalls=runs.accept_stalls,
        queue=queue,
    )
    spools = OrphanedSpools(push_socket.endpoints)
    watch = ProcessWatch(PROC, Path(config.path.sysfs))
    sessions = Sessions(
        runs,
        history.session,
        boot_id(Path("/proc")),
        watch.follow,
        partial(_rejected, push_socket, spools),
    )
    ingest = Server(
        push_socket,
        sessions,
        pipeline.push,
        pipeline.has_room,
        lambda: history.writer.stuck,
        requests=requests,
        watch=watch,
    )
    deliver = partial(_deliver_tick, pipeline, alerting, rates)
    sampler = Sampler(enabled, deliver, config.sample.interval, reports=process.reports)
    parts = Parts(
        state=state,
        rates=rates,
        nvml=nvml,
        gpu=gpu,
        nvml_calls=nvml_calls,
        ranks=ranks,
        process=process,
        collectors=enabled,
        requests=requests,
        history=history,
        liveness=liveness,
        alerting=alerting,
        runs=runs,
        pipeline=pipeline,
        spools=spools,
        sessions=sessions,
        ingest=ingest,
        sampler=sampler,
    )
    parts.set_interval(config.sample.interval)
    return parts


def _nvml_calls(config: Config, nvml: Nvml, gpu: GpuCollector) -> NvmlCollector:
    settings = config.collector.gpu
    sys = None if settings.simulate else Path("/sys")
    return NvmlCollector(nvml, gpu, settings.expected, sys, whole=not sees_part())


def _history(
    config: Config, directory: Path, machine: Sequence[str], state: State, requests: IngestRequests
) -> Recorder:
    storage = config.storage
    return Recorder(
        directory,
        Bounds(storage.retention.size, storage.retention.age),
        synchronous=storage.synchronous,
        interval=storage.interval,
        machine=machine,
        acknowledge=requests.acknowledge,
        request_resend=requests.restart,
        hardware=partial(hardware, state),
        jsonl=writable_directory(Path(storage.jsonl), "--storage.jsonl") if storage.jsonl else None,
    )


def _alerting(
    config: Config,
    state: State,
    history: Recorder,
    url: str,
    *,
    requests: IngestRequests,
    queue: BatchQueue,
    process: ProcessCollector,
) -> Alerting:
    try:
        return Alerting(
            config.alerts,
            state,
            history,
            DaemonInfo(socket.gethostname(), f"{url}/"),
            ask=requests.ask_stacks,
            processes=lambda: process.processes,
            push=queue.push,
            command=requests.command_layers,
        )
    except (RuleError, SinkError) as error:
        raise StartError(str(error)) from error


def _peak_flops(state: State, run: str, rank: int) -> object:
    """Return the exported peak FLOP/s of a rank's GPUs; None if there is no such series."""
    return state.some(time.monotonic(), [(PEAK_FLOPS, (run, str(rank)))])[0]


def _rejected(push_socket: PushSocket, spools: OrphanedSpools) -> dict[str, int]:
    return {**push_socket.rejected(), **spools.rejected()}


def _deliver_tick(pipeline: Pipeline, alerting: Alerting, rates: RateTracker, batches: Sequence[Batch]) -> None:
    """Pass the samples of a tick, and the state of the sinks, to the pipeline; record the rates of the tick before."""
    pipeline.tick([*batches, alerting.batch()])
    rates.record(time.monotonic())
