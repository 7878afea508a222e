"""All detectors of what one rank pushes, fed in the right order."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.detectors.base import Column, Context, Detector, Finding
from trackside_daemon.detectors.gradient import Gradient
from trackside_daemon.detectors.learning_rate import LearningRate
from trackside_daemon.detectors.loss_diverging import LossDiverging
from trackside_daemon.detectors.loss_plateau import LossPlateau
from trackside_daemon.detectors.loss_restart import LossRestart
from trackside_daemon.detectors.loss_spike import LossSpike
from trackside_daemon.detectors.memory_leak import MemoryLeak
from trackside_daemon.detectors.nonfinite import NonFinite
from trackside_daemon.detectors.roles import role
from trackside_daemon.detectors.slow_step import SlowStep
from trackside_daemon.detectors.throughput import Throughput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ORDER = ("rate", "gradient", "loss", "evaluation", "duration", "memory")
"""What others are judged by comes first."""

_DETECTORS: dict[str, tuple[type[Detector], ...]] = {
    "rate": (LearningRate,),
    "gradient": (NonFinite, Gradient),
    "loss": (NonFinite, LossRestart, LossSpike, LossDiverging, LossPlateau),
    "evaluation": (NonFinite,),
    "duration": (SlowStep, Throughput),
    "memory": (MemoryLeak,),
}

ALERTS = tuple(dict.fromkeys(alert for every in _DETECTORS.values() for detector in every for alert in detector.alerts))
"""All that can be found, by name."""

RAISED = 1.1
"""A learning rate that rises by more at once is raised, and the loss may jump with it."""


class Found(NamedTuple):
    """A finding, and the key that it is of."""

    key: str
    finding: Finding


class RankDetectors:
    """Those of one rank of one attempt; made anew for the next attempt."""

    def __init__(self) -> None:
        self.context = Context()
        self._of: dict[str, tuple[Detector, ...]] = {}
        self._step: int | None = None

    def take(self, columns: Mapping[str, Column]) -> Iterator[Found]:
        """What is found in samples that were pushed together, by key; keys without a role are passed over."""
        watched = sorted((key for key in columns if role(key)), key=lambda key: _ORDER.index(role(key)))
        for key in watched:
            column = columns[key]
            if key not in self._of:
                self._of[key] = tuple(detector() for detector in _DETECTORS[role(key)])
            for detector in self._of[key]:
                for finding in detector.take(column, self.context):
                    yield Found(key, finding)
            if role(key) == "rate":
                self._note_rate(column)

    def _note_rate(self, column: Column) -> None:
        for step, value in zip(column.steps, column.values, strict=True):
            if isfinite(value):
                before = self.context.learning_rate
                if before is not None and value > before * RAISED and before > 0:
                    self.context.rate_raised_at = step
                self.context.learning_rate = value
