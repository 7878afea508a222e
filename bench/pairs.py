"""Two arms in pairs of random order, between null pairs; statistics of the differences within pairs, in wall and CPU time.

What is measured costs less than steps vary, and far less than a machine varies within seconds. Only the median of differences
within pairs, of arms of equal size, shows it.
"""

from __future__ import annotations

import random
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

RESAMPLES = 1000


class Pairs:
    """A plan of *pairs* with one tested arm, and as many without, after a warm-up.

    Args:
        pairs: The number of pairs with a tested arm.
        warm_up: Steps before the pairs, of which half are tested.

    Attributes:
        arms: Whether each step is tested.
    """

    def __init__(self, pairs: int, warm_up: int) -> None:
        chance = random.Random(4711)
        tested = [True] * pairs + [False] * pairs
        chance.shuffle(tested)
        first = [chance.random() < 0.5 for _ in tested]
        self.tested, self._first, self._warm_up = np.array(tested), np.array(first), warm_up
        self.arms = [True, False] * (warm_up // 2)
        self.arms += [
            one for test, early in zip(tested, first, strict=True) for one in (test and early, test and not early)
        ]

    def split(self, each: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the figures of both arms of all pairs: the tested one, or one of a null pair, and the other."""
        pairs = np.array(each[self._warm_up :]).reshape(-1, 2)
        return np.where(self._first, *pairs.T), np.where(self._first, *pairs.T[::-1])

    def compared(
        self, each: Sequence[float], middle: Callable[..., Any] = np.median
    ) -> tuple[float, tuple[float, float, float], tuple[float, float, float]]:
        """Return the median step, and by how many percent of it tested steps are longer, and those of null pairs."""
        one, other = self.split(each)
        plain, longer = float(np.median(other)), one - other
        tested, null = (
            bootstrapped(some / plain * 100, middle) for some in (longer[self.tested], longer[~self.tested])
        )
        return plain, tested, null

    def figures(self, measured: Sequence[tuple[float, float]], calls: Sequence[float]) -> dict[str, Any]:
        """Return the median step in seconds, and the increase of tested steps in percent and in µs of CPU time of this thread.

        ``mean of cpu`` is the mean increase of that CPU time, which other work of the machine changes least, in percent of the
        median step: what the client does is paced by that, however long other work makes it.

        Args:
            measured: Wall and CPU seconds of each step.
            calls: Seconds in calls of the tested code, per step; their mean is returned in percent too.
        """
        wall = [one for one, _ in measured]
        plain, longer, null = self.compared(wall)
        _, mean, null_mean = self.compared(wall, np.mean)
        one, other = self.split([cpu for _, cpu in measured])
        more = (one - other) / plain * 100
        return {
            "step": plain,
            "pairs": int(self.tested.sum()),
            "longer": longer,
            "mean": mean,
            "null": null,
            "null mean": null_mean,
            "mean of cpu": bootstrapped(more[self.tested], np.mean),
            "null mean of cpu": bootstrapped(more[~self.tested], np.mean),
            "calls": float(self.split(calls)[0][self.tested].mean()) / plain * 100,
            "cpu": bootstrapped((one - other)[self.tested] * 1e6),
        }


def bootstrapped(
    differences: NDArray[np.float64], middle: Callable[..., Any] = np.median
) -> tuple[float, float, float]:
    """Return the median, or another *middle*, with its 95 % interval."""
    chance = np.random.default_rng(4711)
    middles = [middle(chance.choice(differences, len(differences))) for _ in range(RESAMPLES)]
    low, high = np.percentile(middles, [2.5, 97.5])
    return float(middle(differences)), float(low), float(high)


def now() -> tuple[float, float]:
    """Return wall seconds, and CPU seconds of this thread."""
    return perf_counter(), thread_time()
