"""A run that is followed, and all that looks after it: the list that a new part is added to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trackside_daemon.detectors.checkpoints import Checkpoints
from trackside_daemon.detectors.data_loader import DataLoader
from trackside_daemon.detectors.monitor_blind import RunBlind
from trackside_daemon.detectors.settings import DetectorThresholds
from trackside_daemon.detectors.stalled import RankSilent, Stalled
from trackside_daemon.detectors.straggler import SECONDS, Straggler
from trackside_daemon.detectors.wording import span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.detectors.run_view import Run
    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.records import Alert


class Part(Protocol):
    """Looks after one thing of one run.

    Attributes:
        alert: What it says.
    """

    alert: str

    def restore(self, kept: Alert) -> None:
        """It fired when the daemon before this one ended: it goes on until it is seen to be over."""

    def evaluate(self, clock: Clock) -> Iterator[Finding]:
        """What time, and what came meanwhile, has changed."""

    def end(self, clock: Clock) -> Iterator[Finding]:
        """The run has ended: what it says is over."""


class Followed:
    """A run that is followed, and who looks after it."""

    def __init__(
        self,
        run: Run,
        floor: float,
        straggler_window: float = SECONDS,
        thresholds: DetectorThresholds = DetectorThresholds(),  # noqa: B008  it is frozen
    ) -> None:
        self.run = run
        self.checkpoints = Checkpoints(run, thresholds.checkpoint_ratio, thresholds.checkpoint_after)
        self.blind = RunBlind(run)
        self.straggler = Straggler(run, straggler_window, thresholds.straggler_ratio)
        self.parts: tuple[Part, ...] = (
            *(Stalled(run), RankSilent(run, floor), self.straggler, DataLoader(run, thresholds.data_wait_ratio)),
            *(self.checkpoints, self.blind),
        )
        self.sources: set[str] = set()

    def restore(self, kept: Alert) -> None:
        """Give an alert that fired before this daemon to whom it is of."""
        for part in self.parts:
            if part.alert == kept.alert:
                part.restore(kept)


def last_words(run: Run, time: float, loss: str) -> str:
    """What is said of a run that has ended well, or was stopped."""
    how = "has finished" if run.state == "finished" else "was stopped"
    after = f" after {span(time - run.started)}" if run.started else ""
    made = f" and {run.steps:,.0f} steps" if run.steps else ""
    return f"run {run.name} {how}{after}{made}" + (f": {loss}" if loss else "")
