"""Detect values that are NaN or infinite."""

from collections import deque
from collections.abc import Iterator
from math import isfinite

from trackside_daemon.detectors.base import Column, Context, Detection, Episode
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.finding import Severity
from trackside_daemon.model.text import number

CALM = 10  # consecutive finite samples that end the alert

# Skipped steps among the last OF that make an alert. With mixed precision a single one only lowers the loss scale.
SKIPPED, OF = 3, 20

# Norms before the first finite one that mixed precision may skip. The loss scale starts at 2**16 or 2**32, too large
# for the gradients, and each skipped step halves it.
FROM_THE_START = 40


class NonFinite:
    """`NonFinite`: a value is NaN or infinite."""

    alerts: tuple[str, ...] = ("NonFinite",)
    _skips = False

    def __init__(self, _: DetectorThresholds = DEFAULTS) -> None:
        self._episode = Episode("NonFinite", CALM)
        self._first = self._count = self._seen = 0
        self._good: float | None = None
        self._doubtful = 0  # the last finite value was of the weights before this step, which may have spoilt them
        # As if the last skips were long ago, so that the first one counts alone.
        several = SKIPPED if self._skips else 1
        self._lately: deque[int] = deque([-OF] * several, maxlen=several)

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:  # noqa: ARG002  needs no other key
        """Yield a detection for each non-finite sample, and one when the values are finite again."""
        episode = self._episode
        if not episode.fires and all(map(isfinite, column.values)):
            if column.values:
                self._good, self._doubtful = column.values[-1], column.steps[-1]
            self._seen += len(column.values)
            return
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            self._seen += 1
            if not isfinite(value):
                self._lately.append(self._seen)
                yield self._detection(at, step, value)
            elif episode.fires and episode.follow(calm=True):
                yield episode.end(at, f"finite again for {CALM} samples, {number(value)} at step {number(step)}")
            if isfinite(value):
                self._good, self._doubtful = value, self._doubtful if episode.fires else step

    def _detection(self, at: int, step: int, value: float) -> Detection:
        if not self._episode.fires:
            self._first, self._count = step, 0
            self._doubtful = step if self._good is None else self._doubtful
        self._episode.follow(calm=False)
        self._count += 1
        text = f"{number(value)} at step {number(step)}"
        if self._count > 1:
            text += f", {number(self._count)} since step {number(self._first)}"
        if self._good is not None:
            text += f"; the last finite value was {number(self._good)}"
        many = self._seen - self._lately[0] < OF
        begins = self._skips and self._good is None and self._count <= FROM_THE_START
        severity: Severity = "critical" if many and not begins else "info"
        return self._episode.report(severity, at, text, {"doubtful_from_step": self._doubtful})


class NonFiniteNorm(NonFinite):
    """`NonFinite` of a gradient norm. With mixed precision, single ones are normal: the step is skipped and the loss scale lowered.

    Those, and all at the start until the scale fits, are reported as info.
    """

    _skips = True
