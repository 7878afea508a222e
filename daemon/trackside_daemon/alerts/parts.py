"""What looks for trouble in a daemon: the list that a new watcher is added to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trackside_daemon.detectors.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.alarm import Alarm
    from trackside_daemon.metric import Batch


class Watcher(Protocol):
    """Looks at every batch, in the pipeline's thread, and says what is wrong."""

    def take(self, batch: Batch) -> Sequence[Alarm]:
        """What follows from a batch."""


def watchers() -> list[Watcher]:
    """All of them, made anew."""
    return [Watch()]
