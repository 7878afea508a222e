"""How long steps took, derived from when they were pushed: from a step's first push to the next's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

DURATION = "step_duration_seconds"
"""The key of what is derived; what the training itself pushed under it counts instead."""

LOST = 0.05
"""Seconds that a slow step loses at least: when a step was pushed is known as well as the host's scheduler lets it be."""


class StepDurations:
    """Those of one rank. Pauses are part of a duration, but for those that `paused` was told of."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._began = 0.0
        self._paused = 0.0

    def paused(self, seconds: float) -> None:
        """So long was spent in evaluation and checkpoints: it is taken off the longest step that has room for it."""
        self._paused += max(0.0, seconds)

    def take(self, steps: Sequence[int], times: Sequence[float]) -> Column:
        """The steps that ended with these pushes, when, and how many seconds each took.

        A push that is older than the one before tells nothing: values of a GPU come late. A step that falls begins anew.
        """
        ended: list[int] = []
        when: list[float] = []
        took: list[float] = []
        step, began = self._step, self._began
        for pushed, time in zip(steps, times, strict=True):
            if pushed == step or (step is not None and time < began):
                continue
            if step is not None and pushed > step:
                ended.append(step)
                when.append(time)
                took.append((time - began) / (pushed - step))
            step, began = pushed, time
        self._step, self._began = step, began
        if self._paused and took:
            self._take_off(took)
        return Column(ended, when, took)

    def _take_off(self, took: list[float]) -> None:
        longest = max(range(len(took)), key=took.__getitem__)
        if took[longest] >= self._paused:
            took[longest] -= self._paused
            self._paused = 0.0
