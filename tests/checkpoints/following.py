"""The daemon's part that follows checkpoints, with a clock that the test sets and audits in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from session_records import session_opened

from trackside.wire import Clock, Hello, Identity, ProcessInfo, Totals
from trackside_daemon.checkpoints.audit.audit import audit
from trackside_daemon.checkpoints.audit.files import scan
from trackside_daemon.checkpoints.audit.request import AuditRequest
from trackside_daemon.checkpoints.checkpoints import CheckpointFollower
from trackside_daemon.checkpoints.settings import CheckpointSection
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.checkpoint import Checkpoint
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.records import Event, RunState
from trackside_daemon.model.session import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.metric import Sample

WALL = 4e9
"""Unix time at which the tests begin: later than the times of all files."""

BOOT = "boot"


class SameProcess:
    """Answers requests as the process that reads checkpoints does, at the next poll.

    Attributes:
        requests: The requests so far.
        fails: The process is to die of the next request.
        hangs: Directories that hang: a request that has one of them is never answered in time.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.busy = self.fails = False
        self.hangs: set[str] = set()

    def begin(self, request: Any, _: float) -> None:
        """Accept a request."""
        msgspec.json.encode(request)
        self.requests.append(request)
        self.busy = True

    def poll(self, _: float = 0.0) -> Any:
        """Answer the request."""
        if not self.busy:
            return None
        self.busy = False
        if self.fails:
            raise WorkerFailed("it was killed: Killed")
        request = self.requests[-1]
        if not self.hangs.isdisjoint(getattr(request, "places", ())):
            raise WorkerFailed("it takes too long")
        answer = audit(request) if isinstance(request, AuditRequest) else scan(request)
        msgspec.json.encode(answer)
        return answer

    def end(self) -> None:
        """End."""


class Following:
    """A machine with runs that write checkpoints.

    Attributes:
        checkpoints: Follows them.
        auditing: Reads them; *scanning* lists their directories.
        records: The newest record of each path.
        findings: All findings, in order.
        processes: The ranks of this machine.
    """

    def __init__(self, **settings: Any) -> None:
        self.now = 1000.0
        self.auditing, self.scanning = SameProcess(), SameProcess()
        self.records: dict[str, Checkpoint] = {}
        self.history: list[Checkpoint] = []
        self.findings: list[Finding] = []
        self.processes: list[RankProcess] = []
        self.checkpoints = CheckpointFollower(
            CheckpointSection(**settings),
            BOOT,
            lambda: self.processes,
            self._publish,
            auditing=self.auditing,  # type: ignore[arg-type]
            scanning=self.scanning,  # type: ignore[arg-type]
            clock=lambda: self.now,
            wall=lambda: WALL + self.now,
        )

    def _publish(self, batch: Batch) -> None:
        for record in batch.records:
            assert isinstance(record, Checkpoint)
            self.records[record.path] = record
            self.history.append(record)

    def open(
        self,
        attempt: int = 0,
        *,
        run: str = "run",
        boot: str = BOOT,
        owner: str = "",
        directory: str = "",
        started: float = 0.0,
    ) -> None:
        """Begin an attempt of a run on this machine."""
        hello = Hello(
            Identity(run, f"name of {run}", boot=boot), Clock(0, 0), 0, Totals(), about=ProcessInfo(directory=directory)
        )
        record = session_opened(b"%016d" % attempt, hello, run, attempt, started)
        object.__setattr__(record, "owner", Owner(owner or f"uid:{os.getuid()}"))
        self.accept(record)

    def end(self, attempt: int = 0, run: str = "run", state: str = "failed") -> None:
        """End an attempt."""
        self.accept(RunState(run, attempt, state, "", WALL + self.now))

    def report(
        self, path: Path | str, step: int | None = None, attempt: int = 0, run: str = "run", **fields: Any
    ) -> None:
        """Report a checkpoint as the training does."""
        self.accept(Event(run, attempt, WALL + self.now, "checkpoint", 0, step, {"path": str(path), **fields}))

    def accept(self, *records: Any) -> None:
        """Pass records on, as the pipeline does."""
        self.findings += self.checkpoints.accept(Batch("x", records=records))

    def wait(self, seconds: float) -> None:
        """Let time pass, a tick each second."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            self.checkpoints.tick()
        self.accept()

    def state(self, path: Path) -> str:
        """Return the published state of a checkpoint; empty if there is none."""
        record = self.records.get(str(path))
        return "" if record is None else record.state

    def series(self) -> dict[tuple[str, ...], float]:
        """Return the values of the families by the end of their name and their labels."""
        samples: Iterable[Sample] = self.checkpoints.samples().samples
        name = "trackside_training_"
        return {(one.metric.name.removeprefix(name), *one.labels): one.value for one in samples}  # type: ignore[misc]

    def rank(self, pid: int, run: str = "run", attempt: int = 0) -> None:
        """Say that a process is a rank."""
        self.processes.append(RankProcess(run, run, attempt, 0, 0, "", pid))


def record_of(following: Following, path: Path) -> Checkpoint:
    """Return the newest record of a path."""
    return following.records[str(Path(path))]
