"""Keep the cost of a measurement within a share of the training's time, and choose the steps that are timed for that."""

from __future__ import annotations

from collections import deque
from math import ceil, log2
from random import Random
from time import monotonic

NEVER = 2**63  # a step, or a moment, that does not come

MAX_STEPS_APART = 1024  # from one measurement to the next by default, whatever they cost

# The rate doubles when the share allows this many times as many measurements: with 2, it would change back and forth.
RATE_MARGIN = 4

# The first so many steps are timed within few others, whatever that costs: it is little of a whole training, and all of a short one.
EARLY, EARLY_EVERY = 16, 4

LOOKS = 16  # of so many parts of the steps between two samples each is compared with the usual step, in case steps get much longer

# What hooks cost a step, in relation to the time within them: PyTorch calls a model or a graph with hooks another way.
TIMES_MEASURED = 1.25


class OverheadBudget:
    """Chooses each *every*-th step for a measurement, a power of two, so that it costs about *share* of the time.

    Ranks of one run with different powers of two measure together at each step of the larger one.

    Args:
        share: Share of the time.
        most: Limit of steps between two measurements, whatever they cost.

    Attributes:
        every: Steps from one measurement to the next.
    """

    def __init__(self, share: float, most: int = MAX_STEPS_APART) -> None:
        self.every = 1
        self._share = share
        self._most = most
        self._costs: deque[float] = deque(maxlen=5)
        self._steps: deque[float] = deque(maxlen=9)
        self._is_warm = False

    def is_due(self, step: int) -> bool:
        """Return whether step number *step* is measured."""
        return step % self.every == 0

    def next_due(self, step: int) -> int:
        """Return the next step after *step* that is measured."""
        return (step // self.every + 1) * self.every

    def add_step(self, seconds: float) -> None:
        """Record the duration of a step without measurements."""
        self._steps.append(seconds)

    def wanted(self, seconds: float) -> float:
        """Return the steps of so many seconds from one measurement to the next at which the usual cost is the share."""
        # Not the mean: what another process interrupts takes longer, and costs nothing.
        return _median(self._costs) / (self._share * max(seconds, 1e-9))

    def add_cost(self, seconds: float) -> None:
        """Record the cost of a measurement; the first one, with its preparations, does not count."""
        if not self._is_warm:
            self._is_warm = True
            return
        self._costs.append(seconds)
        usual = _median(self._steps)
        if usual <= 0:
            return
        wanted = self.wanted(usual)
        if wanted > self.every:
            self.every = min(self._most, 2 ** ceil(log2(wanted)))
        elif wanted * RATE_MARGIN < self.every:
            self.every = max(1, self.every // 2)


def _median(seconds: deque[float]) -> float:
    ordered = sorted(seconds)  # statistics.median would import decimal and fractions
    return (ordered[len(ordered) // 2] + ordered[~len(ordered) // 2]) / 2 if ordered else 0.0


class StepSampler:
    """Draws steps at random, so that no rhythm of the training is hit, within a share of the time.

    Args:
        share: Share of the time.

    Attributes:
        is_sampled: The current or the next step is timed.
        weight: Number of steps that it stands for: itself and those before it that were not timed.
        next_step: Number of finished steps at which `step_finished` must be called.
    """

    def __init__(self, share: float) -> None:
        self._spent = 0
        self.next_step = 0
        self.is_sampled = True
        self.weight = 1
        self._budget = OverheadBudget(share)
        self._random = Random()  # noqa: S311  no secret; and the training's own generator is not touched
        self._early = EARLY
        self._last_step = 0
        self._last_timed = 0
        self._next_sample = 0
        self._since = 0.0

    def spend(self, nanoseconds: int) -> None:
        """Count what the timing of the current step has taken."""
        self._spent += nanoseconds

    def step_timed(self, number: int) -> None:
        """Record that *number* steps are finished, the last one was timed anyway, and the next one will be."""
        self._last_step = self._last_timed = number
        self._since = monotonic()
        self._next_sample = self._spent = 0
        self.is_sampled, self.weight, self.next_step = True, 1, number + 1

    def step_finished(self, number: int) -> bool:
        """Record that *number* steps are finished, and return whether the next one is timed."""
        now = monotonic()
        seconds = (now - self._since) / max(1, number - self._last_step)
        if self._since and number > self._last_step:
            self._budget.add_step(seconds)
        self._last_step, self._since = number, now
        if self.is_sampled:
            self._budget.add_cost(self._spent * TIMES_MEASURED / 1e9)
            self._spent, self._last_timed = 0, number
            self._early -= self._early > 0
            every = min(self._budget.every, EARLY_EVERY) if self._early else self._budget.every
            self._next_sample = number + self._random.randint(1, 2 * every - 1)  # with mean `every`
        elif (wanted := max(1, ceil(self._budget.wanted(seconds)))) * RATE_MARGIN < self._budget.every:
            self._next_sample = min(self._next_sample, number + self._random.randint(1, 2 * wanted - 1))
        self.is_sampled = number + 1 >= self._next_sample
        self.weight = number + 1 - self._last_timed
        look = number + max(1, self._budget.every // LOOKS)
        self.next_step = number + 1 if self.is_sampled else min(self._next_sample - 1, look)
        return self.is_sampled
