"""Two arms in pairs of random order, between null pairs; statistics of the differences within pairs, in wall and CPU time."""

from __future__ import annotations

import random
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from bench.steps import bootstrapped


class Pairs:
    """A plan of *pairs* with one tested arm, and as many without, after a warm-up.

    Attributes:
        arms: Whether each step is tested.

    """

    def __init__(self, pairs: int, warm_up: int) -> None:
        chance = random.Random(4711)
        tested = [True] * pairs + [False] * pairs
        chance.shuffle(tested)
        first = [chance.random() < 0.5 for _ in tested]
        self._tested, self._first, self._warm_up = np.array(tested), np.array(first), warm_up
        self.arms = [True, False] * (warm_up // 2)
        self.arms += [
            one for test, early in zip(tested, first, strict=True) for one in (test and early, test and not early)
        ]

    def figures(self, taken: list[tuple[float, float]], calls: list[float]) -> dict[str, Any]:
        """Return the median step in seconds, and the increase of tested steps in percent and in µs of CPU time of this thread.

        Args:
            taken: Wall and CPU seconds of each step.
            calls: Seconds in calls of the tested code, per step; their mean is returned in percent too.

        """
        wall, cpu = np.array(taken[self._warm_up :]).reshape(-1, 2, 2).transpose(2, 0, 1)
        plain, longer = self._compared(wall)
        _, more = self._compared(cpu)
        return {
            "step": plain,
            "pairs": int(self._tested.sum()),
            "longer": bootstrapped(longer[self._tested] / plain * 100),
            "mean": bootstrapped(longer[self._tested] / plain * 100, np.mean),
            "null": bootstrapped(longer[~self._tested] / plain * 100),
            "null mean": bootstrapped(longer[~self._tested] / plain * 100, np.mean),
            "calls": float(np.mean([one for one, on in zip(calls, self.arms, strict=True) if on][self._warm_up // 2 :]))
            / plain
            * 100,
            "cpu": bootstrapped(more[self._tested] * 1e6),
        }

    def _compared(self, each: Any) -> tuple[float, Any]:
        plain = float(np.median(np.where(self._first, each[:, 1], each[:, 0])))
        return plain, np.where(self._first, each[:, 0] - each[:, 1], each[:, 1] - each[:, 0])


def now() -> tuple[float, float]:
    """Return wall seconds, and CPU seconds of this thread."""
    return perf_counter(), thread_time()
