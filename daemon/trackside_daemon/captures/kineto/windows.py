"""The windows in which ranks record: at once, after the same optimizer step, or at the same moment."""

from __future__ import annotations

import time
from math import ceil
from typing import TYPE_CHECKING

from trackside_daemon.captures.kineto.pollers import POLL_SECONDS
from trackside_daemon.captures.kineto.protocol import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.captures.kineto.pollers import Pollers
    from trackside_daemon.captures.recorder import AskRanks
    from trackside_daemon.model.capture import Capture

FIRST_SECONDS = 2 * POLL_SECONDS  # when a process that has just started asks for the first time, at the latest
LOOP_SECONDS = 1.0  # libkineto's loop: a configuration has to arrive that much before its start time
MARGIN_SECONDS = 0.5  # how late a process may ask when several start at a moment; a later one does not record
LATE_SECONDS = 0.15  # likewise, when several start after a step; a later one records other steps
COUNTING_SECONDS = 0.1  # time in which optimizer steps are counted, for their rate
COUNTED = 4  # fewer steps in that time do not give a rate
FASTER = 1.15  # steps may become faster than they were
APART_SECONDS = 0.05  # ranks that have made equally many steps but for so much time take them together

# A window has to contain all steps, which take longer while they are recorded. The summary is cut to the steps asked for.
SLOWNESS = 1.5
STALL_SECONDS = 0.25  # of a busy machine
LONGEST_SECONDS = 120.0  # maximum duration of a window
STEP_SECONDS = 0.2  # duration of a step in a run whose speed is unknown, for windows
SLOW_STEP_SECONDS = 5.0  # likewise, for the time limit


class Windows:
    """The windows of captures.

    Args:
        pollers: The processes that ask.
        step_seconds: Returns the duration of a run's steps, by the run's id and attempt; None if it is unknown.
        ask: Asks ranks for the optimizer steps that they have made.
    """

    def __init__(self, pollers: Pollers, step_seconds: Callable[[str, int], float | None], ask: AskRanks) -> None:
        self._pollers = pollers
        self._step_seconds = step_seconds
        self._ask = ask

    def asks_in(self, pid: int) -> float:
        """Return in how many seconds a process is due to ask."""
        poller = self._pollers.get(pid)
        return FIRST_SECONDS if poller is None else max(0.0, poller.at + poller.interval - time.monotonic())

    def window(self, capture: Capture, ranks: Sequence[int], pids: Sequence[int]) -> Window:
        """Return when to record.

        One process records when it asks. Several begin after the same optimizer step if they take their steps together,
        as they do with DistributedDataParallel, and else at a moment by which all have asked.
        """
        options = capture.options
        if len(pids) == 1:
            return Window(options.steps, options.seconds or 0.0)
        delay = max(map(self.asks_in, pids))
        step = self._step_seconds(capture.run, capture.attempt)
        seconds = options.seconds or 0.0
        if options.steps is not None:
            if after := self._common_step(capture.run, ranks, delay + LATE_SECONDS, step):
                return Window(options.steps, after=after)
            seconds = (options.steps + 1) * (step or STEP_SECONDS) * SLOWNESS + STALL_SECONDS
        return Window(None, min(seconds, LONGEST_SECONDS), time.time() + delay + MARGIN_SECONDS + LOOP_SECONDS)

    def limit(self, capture: Capture, window: Window, pids: Sequence[int]) -> float:
        """Return how long a recording takes at most, from when a process has asked."""
        if window.steps is not None:
            step = self._step_seconds(capture.run, capture.attempt) or SLOW_STEP_SECONDS
            steps = window.steps * 2 * SLOWNESS + (1 if window.after else 0)
            return steps * step + (2 * FASTER * max(map(self.asks_in, pids)) if window.after else 0.0)
        return window.seconds + max(0.0, window.start - time.time()) + LOOP_SECONDS

    def _common_step(self, run: str, ranks: Sequence[int], delay: float, step: float | None) -> int:
        """Return the number of an optimizer step that no rank reaches within *delay* seconds; 0 if there is none."""
        before, began = self._counts(run, ranks), time.monotonic()
        time.sleep(COUNTING_SECONDS)
        now = self._counts(run, ranks)
        if not all(now.get(rank) and rank in before for rank in ranks):
            return 0
        made = max(now[rank] - before[rank] for rank in ranks)
        rate = made / (time.monotonic() - began) if made >= COUNTED else 1 / step if step else 0.0
        apart = max(now.values()) - min(now.values())
        if not rate or (apart > 1 and apart / rate > APART_SECONDS):
            return 0
        return max(now.values()) + ceil(delay * FASTER * rate) + 1

    def _counts(self, run: str, ranks: Sequence[int]) -> dict[int, int]:
        _, answers = self._ask("steps?", run, frozenset(ranks))
        return {answer.rank: answer.body.count for answer in answers}
