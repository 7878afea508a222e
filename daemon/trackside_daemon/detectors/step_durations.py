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
        """So long was spent in evaluation and checkpoints during the steps that end next."""
        self._paused += max(0.0, seconds)

    def add(self, steps: Sequence[int], times: Sequence[float]) -> Column:
        """The steps that ended with these pushes, when, and how many seconds each took.

        A push that is older than the one before tells nothing: values of a GPU come late. A step that falls begins anew.
        """
        ended: list[int] = []
        when: list[float] = []
        spans: list[float] = []
        counts: list[int] = []
        step, began = self._step, self._began
        for pushed, time in zip(steps, times, strict=True):
            if pushed == step or (step is not None and time < began):
                continue
            if step is not None and pushed > step:
                ended.append(step)
                when.append(time)
                spans.append(time - began)
                counts.append(pushed - step)
            step, began = pushed, time
        self._step, self._began = step, began
        if self._paused and spans:
            self._subtract_pauses(spans)
        return Column(ended, when, [span / count for span, count in zip(spans, counts, strict=True)])

    def _subtract_pauses(self, spans: list[float]) -> None:
        """One pause is taken off the longest span, several off the longest ones, until they are as long as each other."""
        longest = sorted(range(len(spans)), key=spans.__getitem__, reverse=True)
        paused, self._paused = self._paused, 0.0
        if spans[longest[0]] >= paused:
            spans[longest[0]] -= paused
            return
        for count in range(1, len(longest) + 1):
            level = (sum(spans[at] for at in longest[:count]) - paused) / count
            if count == len(longest) or level >= spans[longest[count]]:
                for at in longest[:count]:
                    spans[at] = max(0.0, level)
                return
