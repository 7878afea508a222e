"""The percentiles of the step time of each live run, for servers without native histograms."""

from collections import Counter, deque
from collections.abc import Mapping
from math import inf

from trackside.buckets import DURATION_SCHEMA
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Distribution, Sample
from trackside_daemon.model.state import State

SOURCE = "training:step_percentiles"
WINDOW = 300.0  # seconds of the steps that count
EVERY = 15.0  # seconds after which the percentiles are made again
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class StepPercentiles:
    """The percentiles of each run's newest steps, over all its ranks of this daemon.

    Args:
        state: The newest values.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._last: dict[tuple[str, ...], Mapping[int, int]] = {}
        """The counts of each rank when they were read last."""
        self._steps: dict[str, deque[tuple[float, Counter[int]]]] = {}
        """By run, when steps were read, and their counts by `trackside.buckets.duration_index`."""
        self._read_at = -inf
        self._batch = Batch(SOURCE, complete=True)

    def batch(self, now: float) -> Batch:
        """Return the percentiles as of the last 15 s; *now* is in seconds of the monotonic clock."""
        if now - self._read_at >= EVERY:
            self._read_at = now
            self._read(now)
            samples = [
                Sample(f.STEP_PERCENTILES, (run, name), quantile(counts, share))
                for run, steps in self._steps.items()
                if (counts := sum((each for _, each in steps), Counter()))
                for name, share in SHARES.items()
            ]
            self._batch = Batch(SOURCE, samples, complete=True)
        return self._batch

    def _read(self, now: float) -> None:
        """Read the steps since the last reading; those of a rank that is new are from before, and do not count."""
        (newest,) = self._state.values(now, f.STEP_DURATION)
        counts = {rank: value.fine for rank, value in newest.items() if isinstance(value, Distribution)}
        steps: dict[str, Counter[int]] = {run: Counter() for run, _ in counts}
        for rank, fine in counts.items():
            if (before := self._last.get(rank)) is not None and fine is not before:
                steps[rank[0]] += Counter(fine) - Counter(before)
        self._last = counts
        self._steps = {run: self._steps.get(run, deque()) for run in steps}
        for run, past in self._steps.items():
            past.append((now, steps[run]))
            while past[0][0] <= now - WINDOW:
                past.popleft()


def quantile(counts: Mapping[int, int], share: float) -> float:
    """Return a quantile in seconds of durations that are counted by `trackside.buckets.duration_index`.

    It is the geometric middle of its bucket, which is 9 % wide, so that it is wrong by 4.5 % at most.
    """
    left = share * sum(counts.values())
    for index in sorted(counts):
        left -= counts[index]
        if left <= 0:
            break
    return float(2 ** ((index - 0.5) / 2**DURATION_SCHEMA))
