"""The daemon without threads and sockets, with a clock that the test sets.

It has the sessions, the pipeline, the watchers, the active alerts and the history.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from alerts.test_simulated import Simulated
from alerts.ticking import Machine, sample
from wire_messages import moment

from trackside.environment.identity import boot_id
from trackside.wire import open_envelope
from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.rules.evaluation import TICK
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert
from trackside_daemon.model.state import State
from trackside_daemon.pipeline.pipeline import Pipeline
from trackside_daemon.service.finding_sources import finding_sources
from trackside_daemon.training.admission import PageLimits
from trackside_daemon.training.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from trackside_daemon.nvml.handle.handle import Nvml
    from trackside_daemon.training.moment import Moment


WRITTEN = 100
"""Ticks after which the history is written: it drops samples that come much faster than they are written."""


class InProcessDaemon:
    """All stages between a message or a sample and an alert.

    Args:
        place: The directory of the history.
        section: The settings of the alerts.
        machine: The sources whose samples the history keeps.
        listeners: Returns further listeners of alerts.
        sources: Returns further finding sources.

    Attributes:
        after: Seconds since the beginning.
        moved: Seconds by which the machine's clock was set forward.
        alerts: The alerts that fired, in order.
        samples: The number of values received.
        state: The newest values.
        history: The history, which keeps the samples of the sources *machine*.
        pipeline: The pipeline, to which other *listeners* of alerts can be given.
    """

    def __init__(
        self,
        place: Path,
        section: AlertsSection | None = None,
        *,
        machine: Collection[str] = (),
        listeners: Callable[[State, HistoryRecorder], Sequence[Any]] = lambda *_: (),
        sources: Callable[[HistoryRecorder], Sequence[Any]] = lambda _: (),
    ) -> None:
        self.after = 0.0
        self.moved = 0.0
        self.alerts: list[Alert] = []
        self.samples = self._ticks = 0
        self.history = HistoryRecorder(place, Bounds(0), machine=machine, acknowledge=lambda _: None)
        self.history.start()
        self.state, wall = State(), lambda: self.now.wall
        watchers = finding_sources(self.state, section or AlertsSection(), [], lambda: self.now.monotonic, wall)
        watchers += sources(self.history)
        found = [*listeners(self.state, self.history), self]
        runs = Runs(PageLimits(), 3600.0, last_attempt=self.history.last_attempt, before=self.history.earlier_attempts)
        self.pipeline = Pipeline(
            self.state, self.history, watchers, ActiveAlerts(), listeners=found, stalls=runs.accept_stalls, wall=wall
        )
        self._sessions = ClientSessions(runs, self.history.session, boot_id(Path("/proc")))
        self._machine = Machine([])
        simulated = Simulated(self._machine, "h100", ())
        self._gpus = GpuCollector(cast("Nvml", simulated), timeout=1.0)

    @property
    def now(self) -> Moment:
        """The present moment."""
        now = moment(self.after)
        return now._replace(wall=now.wall + self.moved)

    def accept(self, batch: Batch) -> None:
        """Collect the alerts that fire."""
        self.alerts += [one for one in batch.records if isinstance(one, Alert) and one.ended is None]

    def receive(self, frames: list[bytes], values: int = 0) -> list[str]:
        """Receive a message of a client, with so many values; return the kinds of the immediate answers."""
        self.samples += values
        while not self.pipeline.has_room():
            time.sleep(0.001)
        answers, batches = self._sessions.receive(Connection(b"peer"), frames, self.now)
        for batch in batches:
            self.pipeline.accept(batch)
        return [open_envelope(answer[1:]).kind for answer in answers]

    def tick(self, values: Mapping[str, float], *, gpus: bool = False) -> None:
        """Run a tick with the host's samples, as `alerts.ticking` writes them, and eight healthy GPUs if wanted."""
        batches = [Batch("host", [sample(name, value) for name, value in values.items()], complete=True)]
        if gpus:
            self._machine.now = self.now.monotonic
            batches.append(Batch("gpu", self._gpus.collect(), complete=True))
        for batch in [*batches, Batch(TICK), *self._sessions.tick(self.now)]:
            self.samples += len(batch.samples)
            batch.time = self.now.wall if batch.source in {"host", "gpu", TICK} else 0.0
            self.pipeline.accept(batch)
        self._ticks += 1
        if self._ticks % WRITTEN == 0:
            self.history.writer.flush(60)

    def failures(self) -> dict[str, int]:
        """Return the failures of each stage of the pipeline that has any."""
        return {stage: count for stage, count in self.pipeline.failures.items() if count}

    def close(self) -> None:
        """Write the rest of the history and close it."""
        self.history.stop()
        self.history.close()


def alerts_above_info(alerts: Iterable[Alert]) -> set[tuple[str, str]]:
    """Return the names and severities of the alerts above info."""
    return {(one.alert, one.severity) for one in alerts if one.severity != "info"}
