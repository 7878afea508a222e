"""Has a run tell the gradient norm of each layer when something goes wrong with its loss or its gradients."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trackside_daemon.model.metric import Batch

ALERTS = frozenset(("LossSpike", "LossDiverging", "GradientExplosion", "GradientVanishing", "NonFinite"))

STEPS = 100
AGAIN_SECONDS = 600.0
"""A run is not asked again so soon."""

RUNS = 1024
"""So many runs are remembered."""


class Layers:
    """Told of alerts in the pipeline's thread, where it waits for nothing.

    Args:
        command: Has the ranks of a run, by its id, do so for a number of steps; those that watch no model do nothing.
        fired: What fired when a daemon before this one ended: that is no news.
        clock: Seconds of the monotonic clock.
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
        self._asked: OrderedDict[str, float] = OrderedDict((one.run, clock()) for one in fired if one.alert in ALERTS)

    def accept(self, batch: Batch) -> None:
        """Ask the runs of which something has begun."""
        for one in batch.records:
            if isinstance(one, Alert) and one.alert in ALERTS and one.run and one.ended is None:
                self._ask(one.run)

    def _ask(self, run: str) -> None:
        now = self._clock()
        asked = self._asked.get(run)
        if asked is not None and now - asked < AGAIN_SECONDS:
            return
        self._asked[run] = now
        self._asked.move_to_end(run)
        if len(self._asked) > RUNS:
            self._asked.popitem(last=False)
        self._command(run, STEPS)
