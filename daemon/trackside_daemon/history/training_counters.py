"""Record the counters of live trainings beside the machine's series, so that their rates can be drawn over time."""

from collections.abc import Callable, Sequence

from trackside_daemon.history.series_name import series_name
from trackside_daemon.model.families import training as f
from trackside_daemon.model.records import ENDED, MachineSample
from trackside_daemon.model.state import State

FAMILIES = (f.STEPS, f.TOKENS, f.SAMPLES, f.PHASE_SECONDS, f.MODEL_FLOPS)
INTERVAL = 5.0  # seconds between records
MOST_RANKS = 64  # ranks of a run that are recorded, the lowest ones


class TrainingCounters:
    """Records `FAMILIES` of the state every `INTERVAL`, also while they do not change: a rate of 0 is known then.

    Args:
        state: The newest value of every series.
        put: Queues records for the writer of the history.
    """

    def __init__(self, state: State, put: Callable[[Sequence[MachineSample]], object]) -> None:
        self._state = state
        self._put = put
        self._recorded = 0.0
        self._ended: frozenset[str] = frozenset()

    def record(self, now: float, wall: float) -> None:
        """Record a tick, at *now* of the monotonic clock and *wall* in Unix seconds."""
        if now - self._recorded < INTERVAL:
            return
        self._recorded = now
        states, *families = self._state.values(now, f.STATE, *FAMILIES)
        # An ended run has its series for a while; it would seem to go on. Its end is recorded once.
        ended = frozenset(run for (run, state), value in states.items() if value == 1.0 and state in ENDED)
        skipped, self._ended = ended & self._ended, ended
        values = {
            series_name(metric, labels): value
            for metric, series in zip(FAMILIES, families, strict=True)
            for labels, value in series.items()
            if isinstance(value, int | float) and int(labels[1]) < MOST_RANKS and labels[0] not in skipped
        }
        if values:
            self._put([MachineSample(wall, values)])
