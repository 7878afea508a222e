"""The captures of one daemon: connects recorders, store, history and pipeline."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trackside.wire import ProfilePlan
from trackside_daemon.captures.automatic import AutomaticCaptures, PlannedCaptures, compare
from trackside_daemon.captures.captures import Captures
from trackside_daemon.captures.kinds.flight_recorder import FlightRecorder
from trackside_daemon.captures.kinds.layers import Layers
from trackside_daemon.captures.kinds.memory import MemoryCaptures
from trackside_daemon.captures.kinds.modules import Modules
from trackside_daemon.captures.kinds.profile import Profiles
from trackside_daemon.captures.kinds.stacks import StackCaptures
from trackside_daemon.captures.kineto.recorder import Kineto
from trackside_daemon.captures.settings import CaptureSection
from trackside_daemon.captures.store import MIB, CaptureStore
from trackside_daemon.detectors.deaths import how_ended
from trackside_daemon.history.read.layers import kinds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.ingest.requests import IngestRequests
from trackside_daemon.model.families.training import RUN_INFO
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.state import State
from trackside_daemon.sampling.collectors import PROC

FLUSH_SECONDS = 2.0  # an end that is known by now is in the history by then

# Not for long: the ranks that are asked count, not those that answer. Their recorders find out why they are silent.
PING_SECONDS = 0.5


class CaptureParts:
    """The captures, and who begins those that nobody asks for.

    Args:
        section: The settings.
        directory: Directory of the history; *memory*: most bytes of the process of a summary.
        history: The history.
        requests: Requests to ingest.
        state: The newest values.
        push: Queues batches for the pipeline.
        processes: Returns the training processes of this machine.
        step_seconds: Returns the duration of the steps of a run, by its id and attempt; None if it is unknown.
        push_socket: A file next to which the socket for PyTorch's profiler lies.
        min_free: Bytes of the disk that stay free.

    Attributes:
        captures: The captures.
        kineto: The socket for PyTorch's profiler, which records profiles itself where it can.
        listeners: Receive the alerts that change.
    """

    def __init__(
        self,
        section: CaptureSection,
        directory: Path,
        memory: int,
        history: HistoryRecorder,
        requests: IngestRequests,
        *,
        state: State,
        push: Callable[[Sequence[Batch]], None],
        processes: Callable[[], Sequence[RankProcess]],
        step_seconds: Callable[[str, int], float | None],
        push_socket: Path,
        min_free: int,
    ) -> None:
        self.kineto = Kineto(push_socket, processes, step_seconds, requests.ask, enabled=section.kineto)
        self.captures = Captures(
            CaptureStore(directory, section.quota_run_mib * MIB, section.quota_mib * MIB, min_free),
            [
                Profiles(self.kineto.recorder, requests.ask, step_seconds, partial(_world_size, state), memory),
                StackCaptures(requests.ask),
                FlightRecorder(requests.ask),
                MemoryCaptures(requests.ask, processes, PROC),
                Layers(history.database, requests.command_layers, step_seconds),
                Modules(requests.ask, step_seconds),
            ],
            partial(_ranks, requests, processes),
            lambda batch: push([batch]),
            history.captures,
            owner=partial(_owner, processes),
            ends=partial(_ends, history),
            finished=partial(compare, stored=history.captures, publish=lambda batch: push([batch])),
        )
        begin = self.captures.begin
        automatic = AutomaticCaptures(begin, processes, state, observes=partial(_observes, history))
        self.listeners = (automatic,) if section.auto else ()
        plan = ProfilePlan(**section.plan.model_dump()) if section.plan.steps else None
        planned = PlannedCaptures(begin, processes, state, plan, of_others=section.plans == "all")
        self._beginners = (*self.listeners, planned)

    def batches(self) -> list[Batch]:
        """Return the samples about captures."""
        return [self.captures.samples(), self.kineto.batch()]

    def tick(self) -> None:
        """Begin the captures that are due."""
        for beginner in self._beginners:
            beginner.tick()


def _owner(processes: Callable[[], Sequence[RankProcess]], run: str) -> str:
    """Return the owner of a run that trains on this machine; empty for another."""
    return next((process.owner for process in processes() if process.run_id == run), "")


def _world_size(state: State, run: str) -> int | None:
    """Return the number of ranks of a live run, by its id; None if it is not known."""
    (infos,) = state.values(time.monotonic(), RUN_INFO)
    found = (dict(zip(RUN_INFO.labels, labels, strict=True)) for labels in infos)
    return next((int(info["world_size"]) for info in found if info["run_id"] == run), None)


def _ends(history: HistoryRecorder, run: str, since: float) -> dict[int | None, str]:
    """Return how the ranks of a run, by its id, have ended since a Unix time; with the key None how the run has."""
    history.writer.flush(FLUSH_SECONDS)
    return {end.rank: how_ended(end.state, end.cause) for end in history.ends(run) if end.time >= since}


def _ranks(requests: IngestRequests, processes: Callable[[], Sequence[RankProcess]], run: str) -> list[int]:
    """Return the ranks of a run, by its id, that are connected or train on this machine."""
    connected, _ = requests.ask("ping", run, seconds=PING_SECONDS)
    return sorted(connected | {process.rank for process in processes() if process.run_id == run and process.pid > 0})


def _observes(history: HistoryRecorder, run: str) -> bool:
    """Return whether a run, by its id, has measured layers; False if the history cannot be read."""
    try:
        with history.database.reading() as connection:
            return bool(kinds(connection, run))
    except sqlite3.Error:  # in the sampler's thread, whose end would be that of the daemon
        return False
