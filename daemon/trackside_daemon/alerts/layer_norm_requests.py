"""Requests for the gradient norm of each layer, when the loss or the gradients of a run raise an alert."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert

ALERTS = frozenset(("LossSpike", "LossDiverging", "GradientExplosion", "GradientVanishing", "NonFinite"))

STEPS = 100  # steps for which a run pushes the norms
AGAIN_SECONDS = 600.0  # least seconds between two requests to one run
MAX_RUNS = 1024  # most runs that are remembered


class LayerNormRequests:
    """Listener of alerts in the pipeline's thread; it never blocks.

    Args:
        command: Requests the norms from the ranks of a run, by its id, for a number of steps; ranks that watch no model
            ignore it.
        fired: Alerts that fired when an earlier daemon ended; they cause no new request.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        command: Callable[[str, int], object],
        fired: Iterable[Alert] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._clock = clock
        self._requested: OrderedDict[str, float] = OrderedDict(
            (alert.run, clock()) for alert in fired if alert.alert in ALERTS
        )

    def accept(self, batch: Batch) -> None:
        """Request the norms from each run for which one of `ALERTS` begins."""
        for record in batch.records:
            if isinstance(record, Alert) and record.alert in ALERTS and record.run and record.ended is None:
                self._request(record.run)

    def _request(self, run: str) -> None:
        now = self._clock()
        requested = self._requested.get(run)
        if requested is not None and now - requested < AGAIN_SECONDS:
            return
        self._requested[run] = now
        # The run with the oldest request is dropped first.
        self._requested.move_to_end(run)
        if len(self._requested) > MAX_RUNS:
            self._requested.popitem(last=False)
        self._command(run, STEPS)
