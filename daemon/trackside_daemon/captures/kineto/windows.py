"""The windows in which ranks record: at once, after the same optimizer step, or at the same moment."""

import time
from collections.abc import Callable, Sequence
from math import ceil

from trackside.limits import PROFILE_SECONDS
from trackside.wire import OptimizerSteps, StepsQuestion
from trackside_daemon.captures.kinds.kind import AskRanks
from trackside_daemon.captures.kineto.profiler_socket import DELAY_SECONDS, POLL_SECONDS, Pollers
from trackside_daemon.captures.kineto.protocol import RecordingWindow
from trackside_daemon.model.capture import Capture

FIRST_SECONDS = 2 * POLL_SECONDS  # when a process that has just started asks for the first time, at the latest
OFFER_SECONDS = 0.05  # a process that is due sooner may ask before it is offered a configuration
LOOP_SECONDS = 1.0  # the length of libkineto's loop
MARGIN_SECONDS = 0.5  # how late a process may ask when several start at a moment; a later one does not record
LATE_SECONDS = 0.15  # how late a process may ask when several start after a step; a later one records other steps
COUNTING_SECONDS = 0.1  # the shortest time in which optimizer steps are counted, for their rate
WAIT_SECONDS = 1.0  # the longest time in which they are counted
LEAD_SECONDS = 0.1  # how long before the first process asks the counting ends: the rate has to hold until then
MIN_COUNTED_STEPS = 4  # fewer steps in that time do not give a rate
MAX_SPEEDUP = 1.15  # steps may become faster than they were
APART_SECONDS = 0.05  # ranks that have made equally many steps but for so much time take them together

# A window has to contain all steps, which take longer while they are recorded. The summary is cut to the steps asked for.
SLOWNESS = 1.5
STALL_SECONDS = 0.25  # of a busy machine
STEP_SECONDS = 0.2  # duration of a step in a run whose speed is unknown, for windows
SLOW_STEP_SECONDS = 5.0  # duration of a step in such a run, for the time limit


class Windows:
    """The windows of captures.

    Args:
        pollers: The processes that ask.
        step_seconds: Returns the duration of a run's steps, by the run's id and attempt; None if it is unknown.
        ask: Asks ranks for the optimizer steps that they have made.
        loop_seconds: How long before its start time a configuration has to arrive.
    """

    def __init__(
        self,
        pollers: Pollers,
        step_seconds: Callable[[str, int], float | None],
        ask: AskRanks,
        loop_seconds: float = LOOP_SECONDS,
    ) -> None:
        self._pollers = pollers
        self._step_seconds = step_seconds
        self._ask = ask
        self.loop_seconds = loop_seconds

    def asks_in(self, pid: int) -> float:
        """Return in how many seconds a process is due to ask, once it is offered a configuration within `OFFER_SECONDS`."""
        poller = self._pollers.get(pid)
        if poller is None:
            return FIRST_SECONDS
        due = poller.at + poller.interval - time.monotonic()
        return due if due > OFFER_SECONDS else max(0.0, due) + poller.interval

    def window(self, capture: Capture, ranks: Sequence[int], pids: Sequence[int]) -> RecordingWindow:
        """Return when to record.

        One process records when it asks. Several begin after the same optimizer step if they take their steps together,
        as they do with DistributedDataParallel, and else at a moment by which all have asked. Processes that do not answer
        how many steps they have made record for a time.
        """
        options = capture.options
        seconds = options.seconds or 0.0
        if options.steps is not None:
            step = self._step_seconds(capture.run, capture.attempt)
            if window := self._counted(capture, ranks, pids, step):
                return window
            seconds = (options.steps + 1) * (step or STEP_SECONDS) * SLOWNESS + STALL_SECONDS
        start = 0.0 if len(pids) == 1 else time.time() + self._all_asked_in(pids) + MARGIN_SECONDS + self.loop_seconds
        return RecordingWindow(None, min(seconds, PROFILE_SECONDS), start)

    def limit(self, capture: Capture, window: RecordingWindow, pids: Sequence[int]) -> float:
        """Return how long a recording takes at most, from when a process has asked."""
        if window.steps is not None:
            return _longest(window.steps, self._all_asked_in(pids), self._step_seconds(capture.run, capture.attempt))
        return window.seconds + max(0.0, window.start - time.time()) + self.loop_seconds

    def _all_asked_in(self, pids: Sequence[int]) -> float:
        return max(map(self.asks_in, pids))

    def _counted(
        self, capture: Capture, ranks: Sequence[int], pids: Sequence[int], step: float | None
    ) -> RecordingWindow | None:
        """Return a window of optimizer steps, after one that no rank reaches before all have asked; None if there is none."""
        steps = capture.options.steps or 0
        delay = self._all_asked_in(pids) + WAIT_SECONDS
        question = StepsQuestion(delay + DELAY_SECONDS + _longest(steps, delay, step))

        def ask() -> dict[int, OptimizerSteps]:
            _, answers = self._ask("steps?", capture.run, frozenset(ranks), question)
            return {answer.rank: answer.body for answer in answers}

        before, began = ask(), time.monotonic()
        if len(ranks) == 1:
            return RecordingWindow(steps) if before else None
        time.sleep(COUNTING_SECONDS)
        time.sleep(min(WAIT_SECONDS, max(0.0, min(map(self.asks_in, pids)) - LEAD_SECONDS)))
        now = ask()
        if not all(rank in before and rank in now and now[rank].count for rank in ranks):
            return None
        counts = [now[rank].count for rank in ranks]
        made = max(now[rank].count - before[rank].count for rank in ranks)
        rate = made / (time.monotonic() - began) if made >= MIN_COUNTED_STEPS else 1 / step if step else 0.0
        apart = max(counts) - min(counts)
        if not rate or (apart > 1 and apart / rate > APART_SECONDS):
            return None
        delay = self._all_asked_in(pids)  # as of now: a process may have asked since
        after = max(counts) + ceil((delay + LATE_SECONDS) * MAX_SPEEDUP * rate) + 1
        return RecordingWindow(steps, after=after, skipped={rank: now[rank].skipped for rank in ranks})


def _longest(steps: int, delay: float, step: float | None) -> float:
    """Return how long optimizer steps take at most, from when a process has asked: they may begin *delay* later."""
    return (steps * 2 * SLOWNESS + 1) * (step or SLOW_STEP_SECONDS) + 2 * MAX_SPEEDUP * delay
