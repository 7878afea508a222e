"""Detect an evaluation loss that rises while the training loss falls: the model learns the training samples by heart.

The evaluation loss is smoothed by medians of three, since one evaluation may be an outlier. Its noise is that of its second
differences, which a trend leaves alone, and its swings are the rises from which it has come back, as at each restart of a rate.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from trackside_daemon.detectors.base import HUGE, Context
from trackside_daemon.detectors.levels import SampleAlert
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.finding import Severity
from trackside_daemon.model.robust import middle_and_spread
from trackside_daemon.model.text import number

SMOOTHED = 3  # least evaluations of a median; a tenth of all of them, if those are more
LEAST = 5  # evaluations before which nothing is detected
LATEST = 200  # evaluations of which the noise is that of the latest; the lowest one is kept for ever

# The rise since the lowest evaluation, in standard deviations of the noise, of the largest swing, and as a share of the fall before
# it, and of the loss.
ERRORS, SWINGS, OF_FALL, OF_LOSS = 4.0, 1.5, 0.02, 0.005

# The fall of the training loss since then, as a share of itself or of the rise.
FELL, FELL_OF_RISE = 0.05, 0.5

BACK = 0.5  # share of the needed rise below which it is over

TRAINED = 64  # training losses before an evaluation that are compared, as many as a `Context` keeps


class Overfitting(SampleAlert):
    """`Overfitting`: the evaluation loss has risen since its lowest value, and the training loss has fallen since then."""

    alerts = ("Overfitting",)
    severity: Severity = "info"

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._begin()

    def _begin(self) -> None:
        self._values: list[float] = []
        self._step: int | None = None
        self._first = 0.0
        self._lowest: tuple[float, float | None] | None = None
        """The lowest smoothed loss, and the training loss then."""
        self._best = (0.0, 0)
        """The lowest loss, and its step."""
        self._risen = self._swing = 0.0
        """The largest rise of the smoothed loss since its lowest value, and of those before, from which it came back."""

    def _judge(self, step: int, value: float) -> str | None:
        back = self._step is not None and step <= self._step
        if back:
            self._begin()
        training = _training_loss(self.context, self._step, step)
        self._step = step
        if not self._values or value < self._best[0]:
            self._best = value, step
        self._first = self._first if self._values else value
        self._values.append(value)
        del self._values[:-LATEST]
        text = self._judge_level(value, training)
        return f"the training went back to step {number(step)}" if back and self.firing else text

    def _judge_level(self, value: float, training: float | None) -> str | None:
        wide = max(SMOOTHED, len(self._values) // 10)
        now = median(self._values[-wide:])
        if self._lowest is None or now < self._lowest[0]:
            self._lowest = now, training
            self._swing, self._risen = max(self._swing, self._risen), 0.0
        lowest, then = self._lowest
        self._risen = max(self._risen, now - lowest)
        if len(self._values) < LEAST:
            return None
        rise, best = now - lowest, self._best
        needed = max(SWINGS * self._swing, OF_FALL * (self._first - lowest), OF_LOSS * abs(lowest))
        if not self.firing and not (rise > needed and value > lowest):
            return None  # as nearly always: the noise is dear
        needed = max(needed, ERRORS * _noise(self._values) * (SMOOTHED / wide) ** 0.5)
        if self.firing:
            return f"it is back at {number(value)}" if rise < BACK * needed else None
        if not (rise > needed and training is not None and then is not None and _fell(then, training, rise)):
            return None
        text = f"best at step {number(best[1])} ({number(best[0])}), +{number(value - best[0], 2)} since"
        return f"{text}, while the training loss fell from {number(then)} to {number(training)}"


def _training_loss(context: Context, after: int | None, step: int) -> float | None:
    """Return the median training loss of the steps from one evaluation to the next, at most `TRAINED`; the last one without any."""
    losses = [(at, loss) for at, loss in context.losses.items() if at <= step and -HUGE < loss < HUGE][-TRAINED:]
    return median([loss for at, loss in losses if after is None or at > after] or [losses[-1][1]]) if losses else None


def _fell(then: float, now: float, rise: float) -> bool:
    """Return whether the training loss fell by more than its noise may: by a part of itself, or of the *rise*."""
    return then - now >= min(FELL * abs(then), FELL_OF_RISE * rise)


def _noise(values: Sequence[float]) -> float:
    """Return the standard deviation of the noise of values that follow a smooth curve."""
    differences = [after - before for before, after in pairwise(values)]
    return middle_and_spread([after - before for before, after in pairwise(differences)])[1] / 6**0.5
