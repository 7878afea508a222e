"""The captures of one daemon: connects recorders, store, history and pipeline."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from trackside_daemon.captures.automatic import compare
from trackside_daemon.captures.captures import Captures
from trackside_daemon.captures.kinds.flight_recorder import FlightRecorder
from trackside_daemon.captures.kinds.layers import Layers
from trackside_daemon.captures.kinds.memory import Memory
from trackside_daemon.captures.kinds.profile import Profiles
from trackside_daemon.captures.kinds.stacks import Stacks
from trackside_daemon.captures.store import MIB, CaptureStore
from trackside_daemon.detectors.deaths import how_ended
from trackside_daemon.model.families.training import RUN_INFO
from trackside_daemon.sampling.collectors import PROC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trackside_daemon.captures.kineto.recorder import KinetoRecorder
    from trackside_daemon.captures.settings import CaptureSection
    from trackside_daemon.history.recorder import Recorder as History
    from trackside_daemon.ingest.requests import IngestRequests
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.model.rank_process import RankProcess
    from trackside_daemon.model.state import State

FLUSH_SECONDS = 2.0  # an end that is known by now is in the history by then

PING_SECONDS = (
    0.5  # the ranks that are asked count, not those that answer: their recorders find out why they are silent
)


def make_captures(
    section: CaptureSection,
    directory: Path,
    memory: int,
    history: History,
    requests: IngestRequests,
    *,
    state: State,
    push: Callable[[Sequence[Batch]], None],
    processes: Callable[[], Sequence[RankProcess]],
    step_seconds: Callable[[str, int], float | None],
    pytorch: KinetoRecorder,
) -> Captures:
    """Return the captures of a daemon, whose profiles PyTorch itself records where it can."""
    return Captures(
        CaptureStore(directory, section.quota_run_mib * MIB, section.quota_mib * MIB),
        [
            Profiles(pytorch, requests.ask, step_seconds, partial(_world_size, state), memory),
            Stacks(requests.ask),
            FlightRecorder(requests.ask),
            Memory(requests.ask, processes, PROC),
            Layers(history.database, requests.command_layers, step_seconds),
        ],
        partial(_ranks, requests, processes),
        lambda batch: push([batch]),
        history.captures,
        owner=partial(_owner, processes),
        ends=partial(_ends, history),
        finished=partial(compare, stored=history.captures, publish=lambda batch: push([batch])),
    )


def _owner(processes: Callable[[], Sequence[RankProcess]], run: str) -> str:
    """Return the owner of a run that trains on this machine; empty for another."""
    return next((process.owner for process in processes() if process.run_id == run), "")


def _world_size(state: State, run: str) -> int | None:
    """Return the number of ranks of a live run, by its id; None if it is not known."""
    (infos,) = state.values(time.monotonic(), RUN_INFO)
    found = (dict(zip(RUN_INFO.labels, labels, strict=True)) for labels in infos)
    return next((int(info["world_size"]) for info in found if info["run_id"] == run), None)


def _ends(history: History, run: str, since: float) -> dict[int | None, str]:
    """Return how the ranks of a run, by its id, have ended since a Unix time; with the key None how the run has."""
    history.writer.flush(FLUSH_SECONDS)
    return {end.rank: how_ended(end.state, end.cause) for end in history.ends(run) if end.time >= since}


def _ranks(requests: IngestRequests, processes: Callable[[], Sequence[RankProcess]], run: str) -> list[int]:
    """Return the ranks of a run, by its id, that are connected or train on this machine."""
    connected, _ = requests.ask("ping", run, seconds=PING_SECONDS)
    return sorted(connected | {process.rank for process in processes() if process.run_id == run and process.pid > 0})
