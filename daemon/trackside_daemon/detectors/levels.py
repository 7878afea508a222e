"""The level of a noisy series now and before, and an alert that follows from the two."""

from collections.abc import Iterator
from math import sqrt

from trackside_daemon.detectors.base import HUGE, Column, Context, Detection
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.finding import Severity
from trackside_daemon.model.robust import SortedWindow

_MEDIAN = 1.2533  # standard error of a median, in those of a mean


class SampleAlert:
    """A detector that evaluates each finite sample, and fires from one of them to a later one. Subclasses define `_judge`.

    Attributes:
        alerts: The alert's name.
        severity: Its severity, a warning unless the class has another.
        firing: It fires.
        firing_for: The samples for which it has fired.
        accepted: It ends because what stays counts as normal.
        context: Facts of the rank at the samples.
        setting: The name of its threshold; empty for an alert without one.
        most: The threshold, or 0.
    """

    alerts: tuple[str, ...]
    severity: Severity = "warning"
    context: Context
    setting = ""

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        self.most: float = getattr(thresholds, self.setting, 0.0)
        self.firing = False
        self.firing_for = 0
        self.accepted = False

    def _judge(self, step: int, value: float) -> str | None:
        """Return why the alert fires at this sample, or while it fires, why it ends; None if nothing changes."""
        raise NotImplementedError

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next samples show."""
        self.context = context
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            if not -HUGE < value < HUGE:
                continue
            self.firing_for += self.firing
            text = self._judge(step, value)
            if text is not None:
                yield Detection(self.alerts[0], self.severity, at, text, over=self.firing, accepted=self.accepted)
                self.firing = not self.firing
                self.firing_for, self.accepted = 0, False


class LevelAlert(SampleAlert):
    """A detector that compares the level of the last samples with that before. Subclasses define `_judge_level`.

    Attributes:
        spans: Samples of the present level, and of the level before, which does not follow while the alert fires.
        least: Samples of the level before that are needed.
        signed: The sign of a sample counts.
        before: The samples of the level before.
    """

    spans: tuple[int, int]
    least = 0
    signed = False

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._recent, self.before = map(SortedWindow, self.spans)

    @property
    def usual(self) -> float:
        """The median of the samples before; there must be one."""
        return self.before.median()

    def error(self) -> float:
        """Return the standard error of the present level, by the scatter of the samples before."""
        return _MEDIAN * self.before.spread() / sqrt(self.spans[0])

    def _judge(self, step: int, value: float) -> str | None:
        recent = self._recent
        if len(recent) == self.spans[0] and not self.firing:
            self.before.add(recent.arrived[0])
        recent.add(value if self.signed else abs(value))
        enough = len(recent) == self.spans[0] and len(self.before) >= self.least
        return self._judge_level(step, recent.median()) if enough else None

    def _judge_level(self, step: int, now: float) -> str | None:
        """Return what changes at the sample of this step, with the median of the last samples; None if nothing does."""
        raise NotImplementedError
