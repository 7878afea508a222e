"""All detectors of what one rank pushes, fed in the right order."""

from __future__ import annotations

from functools import partial
from itertools import islice
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
from trackside_daemon.detectors.window import Window
from trackside_daemon.detectors.words import HUGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ORDER = ("rate", "gradient", "loss", "evaluation", "duration", "memory")
"""What others are judged by comes first."""

_DETECTORS: dict[str, tuple[Callable[[], Detector], ...]] = {
    "rate": (LearningRate,),
    "gradient": (partial(NonFinite, skips=True), Gradient),
    "loss": (NonFinite, LossRestart, LossSpike, LossDiverging, LossPlateau),
    "evaluation": (NonFinite,),
    "duration": (SlowStep, Throughput),
    "memory": (MemoryLeak,),
}

RAISED = 1.1
"""A learning rate that rises by more at once is raised, and the loss may jump with it."""

KEPT = 64
"""Steps whose gradient norm and raised rates are kept beside those pushed together."""

OWN, OWN_LEAST = 16, 5
"""Gradient norms whose median the next is measured by, and how few there must be."""


class Found(NamedTuple):
    """A finding, and the key that it is of."""

    key: str
    finding: Finding


class RankDetectors:
    """Those of one rank of one attempt; made anew for the next attempt."""

    def __init__(self) -> None:
        self.context = Context()
        self._of: dict[str, tuple[Detector, ...]] = {}
        self._total = ""
        self._norms = Window(OWN)

    def take(self, columns: Mapping[str, Column]) -> Iterator[Found]:
        """What is found in samples that were pushed together, by key; keys without a role are passed over."""
        self._forget_old()
        watched = sorted((key for key in columns if role(key)), key=lambda key: _ORDER.index(role(key)))
        for key in watched:
            column = columns[key]
            if role(key) == "gradient":
                self._note_gradient(key, column)
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
                    self.context.rates_raised.append(step)
                self.context.learning_rate = self.context.rates[step] = value

    def _note_gradient(self, key: str, column: Column) -> None:
        """Measure each norm by those before it; of several keys that with the shortest name is of the whole model."""
        if not self._total or len(key) < len(self._total):
            self._total = key
            self._norms.clear()
        if key != self._total:
            return
        for step, value in zip(column.steps, column.values, strict=True):
            if not 0 <= value < HUGE:
                continue
            if len(self._norms) >= OWN_LEAST:
                own = self._norms.median()
                self.context.gradient = value / own if own > 0 else 1.0
                self.context.gradients[step] = self.context.gradient
            self._norms.add(value)

    def _forget_old(self) -> None:
        context = self.context
        for by_step in (context.gradients, context.rates):
            for step in list(islice(by_step, max(0, len(by_step) - KEPT))):
                del by_step[step]
        del context.rates_raised[:-KEPT]
