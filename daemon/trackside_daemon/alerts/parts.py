"""What looks for trouble in a daemon: the list that a new watcher is added to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trackside_daemon.detectors.runs import RunWatch
from trackside_daemon.detectors.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.alarm import Alarm
    from trackside_daemon.metric import Batch


class Watcher(Protocol):
    """Looks at every batch, in the pipeline's thread, and says what is wrong."""

    def take(self, batch: Batch) -> Sequence[Alarm]:
        """What follows from a batch."""


class Told(Protocol):
    """Is told of alerts that began, got worse or ended, in the pipeline's thread: it keeps that for a thread of its own."""

    def take(self, batch: Batch) -> None:
        """The `record.Alert`s of a batch that the book made."""


def watchers(*, stall_after: float = 60.0, straggler_window: float = 10.0) -> list[Watcher]:
    """All of them, made anew; the arguments are those of `RunWatch`."""
    return [Watch(), RunWatch(stall_after=stall_after, straggler_window=straggler_window)]
