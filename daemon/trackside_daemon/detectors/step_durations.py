"""Derive step durations from the times of pushes: from the first push of a step to that of the next."""

from collections.abc import Sequence

from trackside_daemon.detectors.base import Column

# Key of the derived durations. If the training pushes this key itself, those values count instead.
DURATION = "step_duration_seconds"

LOST = 1.0  # least seconds that slow steps lose: nobody can do anything about less


class StepDurations:
    """Step durations of one rank. Pauses count, except those passed to `paused`."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._began = 0.0
        self._paused = 0.0

    def paused(self, seconds: float) -> None:
        """Subtract *seconds* of evaluation and checkpoints from the steps that end next."""
        self._paused += max(0.0, seconds)

    def add(self, steps: Sequence[int], times: Sequence[float]) -> Column:
        """Add pushes and return the steps that ended with them: step, Unix time of the end, and duration in seconds.

        A push that is older than the one before is ignored, because values of a GPU arrive late. A falling step starts again.
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
        """Subtract one pause from the longest span; several from the longest ones, until those are equally long."""
        # In which step a pause was is unknown, but it made that step long.
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
