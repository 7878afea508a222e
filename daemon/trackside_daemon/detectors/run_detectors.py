"""A watched run and the detectors of its progress: a new run detector is added to this list."""

from math import inf, isfinite

from trackside_daemon.detectors.base import SlowSteps
from trackside_daemon.detectors.checkpoints import CheckpointOverdue
from trackside_daemon.detectors.data_loader import DataLoader
from trackside_daemon.detectors.key_roles import BY_NAME, KeyRoles
from trackside_daemon.detectors.monitor_blind import RunBlind
from trackside_daemon.detectors.replicas import ReplicasDiffer
from trackside_daemon.detectors.run_view import RunAlert, RunProgress
from trackside_daemon.detectors.settings import DetectorThresholds
from trackside_daemon.detectors.stalled import RankSilent, Stalled
from trackside_daemon.detectors.step_durations import LOST
from trackside_daemon.detectors.straggler import Straggler
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.records import Alert
from trackside_daemon.model.session import RankRef
from trackside_daemon.model.text import counted, duration, number, percent

# Alerts that last until an attempt makes progress, or ends.
LASTING = tuple(
    each.alert for each in (Stalled, RankSilent, Straggler, DataLoader, CheckpointOverdue, RunBlind, ReplicasDiffer)
)


class WatchedRun:
    """A run and its detectors.

    Attributes:
        run: The run's progress.
        refs: The ranks that are watched.
        stall_version: The `RunProgress.stall_version` that was published last.
    """

    def __init__(self, run: RunProgress, straggler_window: float, thresholds: DetectorThresholds) -> None:
        self.run = run
        self.checkpoints = CheckpointOverdue(run, thresholds.checkpoint_ratio, thresholds.checkpoint_after)
        self.blind, self.replicas = RunBlind(run), ReplicasDiffer(run)
        self.straggler = Straggler(run, straggler_window, thresholds.straggler_ratio)
        self.detectors: tuple[RunAlert, ...] = (
            Stalled(run),
            RankSilent(run),
            self.straggler,
            DataLoader(run, thresholds.data_wait_ratio),
            self.checkpoints,
            self.blind,
            self.replicas,
        )
        self.refs: set[RankRef] = set()
        self.stall_version: tuple[object, ...] = ()

    def restore(self, kept: Alert) -> None:
        """Restore an alert in the detector that reports it."""
        for detector in self.detectors:
            if detector.alert == kept.alert:
                detector.restore(kept)


class BestLoss:
    """The loss of one run over all its attempts, as its lowest *rank* pushes it: of one key, the one with the shortest name.

    Attributes:
        rank: The rank.
        key: The key; empty before there is one.
    """

    def __init__(self, rank: int, roles: KeyRoles = BY_NAME) -> None:
        self.rank = rank
        self._roles = roles
        self.key = ""
        self._last: float | None = None
        self._best = inf
        self._step = 0

    def accept(self, columns: Columns) -> bool:
        """Apply the next rows; return whether the last loss is finite, if there is one."""
        keys = [key for key in columns.keys if self._roles.of(key) == "loss"]
        if not keys:
            return True
        key = min(keys, key=len)
        if key != self.key:
            if self.key and len(key) >= len(self.key):  # a logged mean, for example, that is pushed alone
                return True
            self.key, self._best = key, inf
        losses = columns.column(columns.keys.index(key))
        self._last = losses[-1]
        best = min(filter(isfinite, losses), default=inf)
        if best < self._best:
            self._best = best
            self._step = columns.steps[losses.index(best)]
        return isfinite(losses[-1])

    def text(self, objective: str = "") -> str:
        """Return last and best loss as text, or the last and why it is an *objective*; empty if none was pushed."""
        if self._last is None:
            return ""
        if objective:
            return f"last loss {number(self._last)}, which is read as an objective: {objective}"
        best = "" if self._best == inf else f", best {number(self._best)} at step {number(self._step)}"
        return f"last loss {number(self._last)}{best}"


def slowness(slow: SlowSteps) -> str:
    """Return how much single slow steps have lost; empty for less than a second."""
    return "" if slow.seconds < LOST else f"{counted(slow.count, 'slow step')} lost {duration(slow.seconds)}"


def waits(run: RunProgress, time: float, share: float) -> str:
    """Return the share of the time that a run waited for data until its end at *time*; empty up to *share* of it."""
    seconds = (time - run.started) * len(run.ranks) if run.started else 0.0
    waited = run.waited / seconds if seconds > 0 else 0.0
    return f"{percent(min(1.0, waited))} of the time was spent waiting for data" if waited > share else ""
