"""From what goes wrong to the people who are to know, in one daemon: who looks, what fires, its evidence, who is told."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.delivery.delivery import Delivery
from trackside_daemon.alerts.disabled import DisabledAlerts
from trackside_daemon.alerts.evidence.gathering import EvidenceGatherer
from trackside_daemon.alerts.evidence.sources import Sources
from trackside_daemon.alerts.firing import FiringAlerts
from trackside_daemon.alerts.layer_norms import LayerNormRequests
from trackside_daemon.alerts.registry import Stalls
from trackside_daemon.alerts.restored import usable
from trackside_daemon.alerts.silences import Silences
from trackside_daemon.alerts.sinks.group_outbox import GIVE_UP_SECONDS
from trackside_daemon.alerts.sinks.registry import sinks
from trackside_daemon.alerts.test_alert import AlertTester
from trackside_daemon.history.directory import UnreadableError
from trackside_daemon.model.metric import Batch
from trackside_daemon.service.watchers import all_watchers, misspelt, recall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.alerts.evidence.sources import RequestStacks
    from trackside_daemon.alerts.registry import FindingSource
    from trackside_daemon.alerts.settings import AlertsSection
    from trackside_daemon.alerts.sinks.sink import DaemonInfo, Sink
    from trackside_daemon.collectors.process.process import Process
    from trackside_daemon.history.recorder import Recorder
    from trackside_daemon.model.finding import Stands
    from trackside_daemon.model.records import Alert
    from trackside_daemon.model.state import State

_log = logging.getLogger("trackside")

WRITTEN_SECONDS = 5.0
"""Evidence is gathered without what the history has not written by then."""


class Alerting:
    """Goes on from what fired when a daemon before this one ended, by the history.

    Args:
        section: The settings.
        state: The newest values.
        history: What is kept; it keeps alerts too.
        about: What of this daemon a notification carries.
        ask: Asks ranks of a run, by its id, for their stacks.
        processes: The processes as of the last tick.
        push: Queues batches for the pipeline.
        command: Has the ranks of a run, by its id, tell the norms of all layers for so many steps.

    Attributes:
        silences: What people are not told of.
        trial: Raises test alerts.
        watchers: Who looks for trouble, for the pipeline.
        book: Decides what fires.
        told: Who is told of that.
        firing: What fires, for pages that show it.

    Raises:
        RuleError: A rule of the user's cannot be used.
        SinkError: A sink cannot: a file with a secret is not there, or the like.
    """

    def __init__(
        self,
        section: AlertsSection,
        state: State,
        history: Recorder,
        about: DaemonInfo,
        *,
        ask: RequestStacks,
        processes: Callable[[], Sequence[Process]],
        push: Callable[[Sequence[Batch]], None],
        command: Callable[[str, int], object],
    ) -> None:
        now = time.time()
        kept, ended = history.firing(now), history.ended(now - GIVE_UP_SECONDS, now)
        since = min((one.started for one in [*kept, *ended]), default=now)
        self.silences = Silences(history.silences(min(since, now)))
        fired = self.silences.mark(usable(kept), now)
        self.book = ActiveAlerts(_off(section), self.silences)
        self.book.restore(fired, now)
        self.trial = AlertTester()
        self.watchers: list[FindingSource] = [
            *all_watchers(state, section, fired, attempt=partial(_last_attempt, history)),
            self.trial,
        ]
        recall(self.watchers, history.database, fired)
        self._finder = next((one for one in self.watchers if isinstance(one, Stalls)), None)
        self._about = about
        self._delivery = Delivery(sinks(section.sinks, about), lambda note: history.writer.put([note]))
        self._delivery.restore([*map(self._as_it_ended, ended), *fired])
        sources = Sources(state, history.database, ask, processes, lambda: history.writer.flush(WRITTEN_SECONDS))
        self._evidence = EvidenceGatherer(sources, lambda batch: push([batch]))
        self.firing = FiringAlerts(fired)
        self.told = (self._evidence, self._delivery, self.firing, LayerNormRequests(command, fired))

    def start(self) -> None:
        """Look for evidence, and tell."""
        self._evidence.start()
        self._delivery.start()

    def stop_asking(self) -> None:
        """No rank is asked any more; before the ingest stops."""
        self._evidence.stop()

    def stop(self) -> None:
        """Tell what waits, for some seconds; after the pipeline has stopped."""
        self._delivery.stop()

    def sinks(self, section: AlertsSection) -> list[Sink]:
        """Those of other settings, for `change`.

        Raises:
            SinkError: One cannot be used.
        """
        return sinks(section.sinks, self._about)

    def change(self, section: AlertsSection, ways: Sequence[Sink]) -> None:
        """What of other settings can be used at once; *ways* are their `sinks`."""
        self.book.disabled = _off(section)
        self._delivery.change(ways)  # in any case: a file that they name may have changed

    def stalls(self, run: str, attempt: int) -> Stands | None:
        """As `Stalls`; whether people are told of it is nothing to what it is."""
        return None if self._finder is None else self._finder.stalls(run, attempt)

    def batch(self) -> Batch:
        """How the sinks are, for the page."""
        return Batch("notifications", self._delivery.samples(), complete=True)

    def standings(self) -> dict[str, Any]:
        """How the sinks are, by name, for the API."""
        return self._delivery.statuses()

    def _as_it_ended(self, alert: Alert) -> Alert:
        """One that has ended, with `silenced` as it was then."""
        return replace(alert, silenced=self.silences.mutes(alert.alert, alert.labels, alert.ended or 0.0))


def _off(section: AlertsSection) -> DisabledAlerts:
    """What is not wanted; the log has the names that are no alert's."""
    for line in misspelt(section):
        _log.warning("%s", line)
    return DisabledAlerts(section.off)


def _last_attempt(history: Recorder, run: str) -> int:
    """Of a run that an alert is of which fires still; 0 if nobody can tell."""
    with suppress(UnreadableError):
        return (history.last_attempt(run) or (0, None))[0]
    return 0
