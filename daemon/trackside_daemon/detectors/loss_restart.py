"""Detect a loss that starts again, after a resume or with a new model."""

from collections import deque
from collections.abc import Iterator
from statistics import median

from trackside_daemon.detectors.base import HUGE, Column, Context, Detection
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.text import number

BEGINNING, BEFORE = 5, 9  # samples of the initial loss; recent samples that a new one is compared with

# The loss of a new model lies above LEAP times the recent maximum, and between these multiples of the lowest and the highest
# of the initial losses.
LEAP, ANEW = 3.0, (0.7, 1.3)

OVER = 64  # samples after which a restart without a step to catch up with ends

# A restart is a warning if the losses fall as slowly as the first ones did: the median of each of three blocks must have made up
# for less than half of the leap to the same block of the first losses. An objective whose target moves comes back sooner.
BLOCK, BLOCKS, HALF = 8, 3, 0.5

PART = 0.04  # share of the leap by which a new model has fallen when the restart is over

EQUAL = 0.05  # share by which two times between leaps differ if the leaps are those of folds, or of a target that is replaced

ANEW_TEXT = ": the model seems to be new"


class LossRestart:
    """`LossRestart`: the step falls, or two successive losses return to the initial loss because the model is new.

    A single such loss is a spike. A step that falls to the first step while the loss continues only counts within epochs, and
    is not reported.
    """

    alerts: tuple[str, ...] = ("LossRestart",)

    def __init__(self, _: DetectorThresholds = DEFAULTS) -> None:
        self._first_step: int | None = None
        self._step = 0
        self._began: list[float] = []
        self._last: deque[float] = deque(maxlen=BEFORE + 1)
        self._until: int | None = None
        self._left = self._leaps = self._seen = self._leapt = self._period = self._since = 0
        self._before = 0.0
        self._anew: list[float] = []
        self._sure = False

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next losses show, and note the restarts for the other detectors of this key."""
        context.restarts = {}
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            if not -HUGE < value < HUGE:
                continue
            if self._first_step is None:
                self._first_step = self._step = step
            last = self._last
            if step < self._step:
                if step > self._first_step or self._is_anew(value):
                    context.restarts[step] = True
                    self._until, self._left = max(self._step, self._until or 0), 0
                    text = f"the training went back to step {number(step)} from {number(self._step)}"
                    lost = step > self._first_step and self._is_anew(value) and value > LEAP * max(last)
                    text += f"; loss {number(value)}, {number(last[-1])} before" + ANEW_TEXT * lost
                    yield Detection("LossRestart", "warning" if lost else "info", at, text)
                last.clear()
            elif last and value > LEAP * last[0] and self._is_anew(value) and self._has_leapt(value):
                self._until, self._left, self._before, self._anew = None, OVER, last[-2], [last[-1]]
                self._sure, self._since = False, self._step
                context.restarts[step] = self._is_next_of_several()
            elif self._until is not None or self._left:
                yield from self._follow(at, step, value, context)
            self._step = step
            self._seen += 1
            last.append(value)
            if len(self._began) < BLOCKS * BLOCK:
                self._began.append(value)

    def _is_anew(self, value: float) -> bool:
        if len(self._began) < BEGINNING:
            return False
        began = self._began[:BEGINNING]
        return 0 < ANEW[0] * min(began) <= value <= ANEW[1] * max(began)

    def _has_leapt(self, value: float) -> bool:
        """Return whether *value* and the sample before are both far above those before them."""
        *before, last = self._last
        return bool(before) and self._is_anew(last) and min(last, value) > LEAP * max(before)

    def _is_next_of_several(self) -> bool:
        """Return whether the loss leaps as long after its last leap, or the beginning, as that came after the one before."""
        self._leaps += 1
        before, self._period, self._leapt = self._period, self._seen - self._leapt, self._seen
        return abs(self._period - before) <= EQUAL * before

    def _falls_as_at_first(self) -> bool:
        """Return whether the losses since the leap are like the first ones, block by block."""
        ends = range(BLOCK, BLOCKS * BLOCK + 1, BLOCK)
        both = ((median(each[end - BLOCK : end]) - self._before for each in (self._anew, self._began)) for end in ends)
        return all(anew >= HALF * began > 0 for anew, began in both)

    def _falls(self) -> bool:
        """Return whether the loss has made up for a part of the leap: one that stays there has diverged."""
        first, last = median(self._anew[:BLOCK]), median(self._anew[-BLOCK:])
        return first - last >= PART * (first - self._before)

    def _follow(self, at: int, step: int, value: float, context: Context) -> Iterator[Detection]:
        if self._until is not None and step >= self._until:
            self._until = None
            yield Detection(
                "LossRestart", "info", at, f"the training has caught up with step {number(step)}", over=True
            )
        elif self._left:
            self._left -= 1
            self._anew.append(value)
            if len(self._anew) == BLOCKS * BLOCK and self._leaps == 1 and self._falls_as_at_first():
                self._sure = True
                text = f"since step {number(self._since)} the loss is like that of the first steps, {number(value)} at step {number(step)}"
                yield Detection("LossRestart", "warning", at, f"{text}, {number(self._before)} before{ANEW_TEXT}")
            context.restarts[step] = self._sure and not self._left and self._falls()
            if self._sure and not self._left:
                text = f"{OVER} samples have passed, at step {number(step)}"
                yield Detection("LossRestart", "warning", at, text, over=True)
