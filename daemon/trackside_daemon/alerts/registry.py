"""What looks for trouble in a daemon: the list that a new watcher is added to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from trackside_daemon.detectors.rank_feed import Watch
from trackside_daemon.detectors.run_watch import RunWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.alerts.settings import AlertsSection
    from trackside_daemon.detectors.recalled_samples import Past
    from trackside_daemon.model.finding import Finding, Stands
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.model.records import Alert


class Watcher(Protocol):
    """Looks at every batch, in the pipeline's thread, and says what is wrong."""

    def take(self, batch: Batch) -> Sequence[Finding]:
        """What follows from a batch."""


@runtime_checkable
class Recalls(Protocol):
    """A watcher that learns, and goes on where a daemon before this one was."""

    def recall(self, past: Past, fired: Sequence[Alert]) -> None:
        """What a rank pushed, of those that train still, and all that fired then."""


@runtime_checkable
class Shows(Protocol):
    """A watcher that measures something, too."""

    def shown(self) -> Sequence[Batch]:
        """What of it has changed since it was asked last."""


@runtime_checkable
class Stalls(Protocol):
    """A watcher that finds who stands still."""

    def stalls(self, run: str, attempt: int) -> Stands | None:
        """Tells who of an attempt of a run, by its id, does; None while nobody does. Asked by any thread."""


class Told(Protocol):
    """Is told of alerts that began, got worse or ended, in the pipeline's thread: it keeps that for a thread of its own."""

    def take(self, batch: Batch) -> None:
        """The `record.Alert`s of a batch that the book made."""


def watchers(
    section: AlertsSection, fired: Sequence[Alert] = (), attempt: Callable[[str], int] = lambda _: 0
) -> list[Watcher]:
    """All of them, made anew.

    Args:
        section: The settings.
        fired: What fired when the daemon before this one ended.
        attempt: Tells the last attempt of a run, by its id, that this one had seen.
    """
    runs = RunWatch(
        stall_after=section.stall_after, straggler_window=section.straggler_window, thresholds=section.thresholds
    )
    for alert in fired:
        runs.adopt(alert, attempt(alert.run))
    return [Watch(section.thresholds), runs]
