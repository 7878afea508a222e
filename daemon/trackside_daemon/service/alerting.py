"""The alerting of one daemon: finding sources, active alerts, evidence and notifications."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from trackside.wire import BatchesQuestion
from trackside_daemon.alerts.active_alerts import SHOWN_SECONDS, ActiveAlerts
from trackside_daemon.alerts.alerted_runs import AlertedRuns
from trackside_daemon.alerts.delivery.delivery import STORED, ConfiguredSinks, Delivery
from trackside_daemon.alerts.disabled import DisabledAlerts
from trackside_daemon.alerts.evidence.batches import listed
from trackside_daemon.alerts.evidence.gathering import EvidenceGatherer
from trackside_daemon.alerts.evidence.sources import MAX_RANKS, Sources
from trackside_daemon.alerts.firing_alerts import FiringAlerts
from trackside_daemon.alerts.layer_norm_requests import LayerNormRequests
from trackside_daemon.alerts.rank_restoring import usable
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.alerts.silences import Silences
from trackside_daemon.alerts.sinks.group_outbox import GIVE_UP_SECONDS
from trackside_daemon.alerts.sinks.registry import sinks
from trackside_daemon.alerts.sinks.sink import DaemonInfo, Sink
from trackside_daemon.alerts.stages import FindingSource
from trackside_daemon.alerts.test_alert import AlertTester
from trackside_daemon.captures.captures import CaptureRequest
from trackside_daemon.captures.kinds.kind import AskRanks
from trackside_daemon.collectors.process.process import TrainingProcess
from trackside_daemon.detectors.run_watch import RunWatch
from trackside_daemon.diagnosis.regression import Regressions
from trackside_daemon.history.console import files
from trackside_daemon.history.directory import UnreadableError
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert
from trackside_daemon.model.stall import Stall
from trackside_daemon.model.state import State
from trackside_daemon.service.finding_sources import alert_names, finding_sources, restoring, rules, unknown_alerts
from trackside_daemon.service.hangs import Hangs

_log = logging.getLogger("trackside")

WRITTEN_SECONDS = 5.0  # evidence does not wait longer for the history to write queued samples
CONSOLE_BYTES = 64 << 10  # of what a command printed last, in which evidence is searched for


class Alerting:
    """Continues, from the history, with the alerts that fired when an earlier daemon ended.

    Args:
        section: The settings.
        state: The newest values.
        history: The history, which stores alerts too.
        about: Facts about this daemon for notifications.
        ask: Asks ranks of a run.
        processes: Returns the processes as of the last tick.
        push: Queues batches for the pipeline.
        command: Has the ranks of a run, by its id, push the norms of all layers for some steps.
        capture: Begins a capture.
        proc: Path of procfs.
        postpones: See `ActiveAlerts`.
        diagnose: Returns the lines of a run's diagnosis, by its id.
        report: See `RunWatch`.
        more: Further finding sources.

    Attributes:
        silences: The silences.
        tester: Raises test alerts.
        sources: The finding sources.
        restoring: Restores those that learn.
        active: The active alerts.
        listeners: Receive the alerts that change.
        firing: The firing alerts, for pages.
        hangs: Verdicts on runs that hang.

    Raises:
        RuleError: A rule of the user cannot be used.
        SinkError: A sink cannot be used, for example because a file with a secret is missing.
    """

    def __init__(
        self,
        section: AlertsSection,
        state: State,
        history: HistoryRecorder,
        about: DaemonInfo,
        *,
        ask: AskRanks,
        processes: Callable[[], Sequence[TrainingProcess]],
        push: Callable[[Sequence[Batch]], None],
        command: Callable[[str, int], object],
        capture: Callable[[CaptureRequest], object],
        postpones: Callable[[Finding], bool],
        diagnose: Callable[[str], Sequence[str]] = lambda _: (),
        report: Callable[[str], str] = lambda _: "",
        proc: str = "/proc",
        more: Sequence[FindingSource] = (),
    ) -> None:
        now = time.time()
        kept = history.firing(now)
        stored_ends = usable(history.ended(now - GIVE_UP_SECONDS, now))
        since = min((alert.started for alert in [*kept, *stored_ends]), default=now)
        self.silences = Silences(history.silences(min(since, now)))
        disabled = _disabled(section)
        marked, known = self.silences.mark(usable(kept), now), alert_names(section)
        fired = [alert for alert in marked if alert.alert in known]
        # Nothing would find an alert of a rule that is gone again, or its end.
        gone = [replace(alert, ended=now) for alert in marked if alert.alert not in known]
        history.writer.put(gone)
        self._runs = AlertedRuns(section)
        self._runs.restore(fired)
        self.active = ActiveAlerts(
            disabled,
            self.silences,
            postpones=postpones,
            host=about.instance,
            url=about.url,
            runs=self._runs,
        )
        ended = self.silences.mark(stored_ends, now)
        self.active.restore([alert for alert in (*ended, *fired) if now - (alert.ended or now) < SHOWN_SECONDS], now)
        self.tester = AlertTester()
        regressions = [*_regressions(section, history, fired)]
        self.sources: list[FindingSource] = [
            self._runs,
            *finding_sources(
                state,
                section,
                fired,
                attempt=partial(last_attempt, history),
                report=report,
                baseline=regressions[0].baseline_value if regressions else lambda *_: None,
            ),
            *more,
            self.tester,
            *regressions,
        ]
        self.restoring = restoring(self.sources, history.database, fired, section)
        self._about = about
        configured = ConfiguredSinks(history.database.path.with_name(STORED))
        self._delivery = Delivery(sinks(section.sinks, about), lambda note: history.writer.put([note]), configured)
        self._delivery.restore([*ended, *gone, *fired])
        self._ask_batches = partial(ask, "batches?")
        flush = partial(history.writer.flush, WRITTEN_SECONDS)
        sources = Sources(
            state,
            history.database,
            partial(ask, "stacks?"),
            processes,
            flush,
            diagnose=diagnose,
            ask_batches=self._ask_batches,
            console=partial(files.read, history.database.path.parent, most=CONSOLE_BYTES),
            proc=proc,
        )
        self._evidence = EvidenceGatherer(sources, lambda batch: push([batch]), fired=fired)
        self.hangs = Hangs(ask, state, processes, lambda batch: push([batch]), capture)
        self.firing = FiringAlerts(fired)
        layers = LayerNormRequests(command, fired)
        self.listeners = (self.hangs, self._evidence, self._delivery, self.firing, layers)

    def start(self) -> None:
        """Start to notify."""
        self._delivery.start()

    def batches(self, run: str, step: int, rank: int | None) -> list[dict[str, Any]]:
        """Return the batches of a step that a rank, or the first ranks, of a live run, by its id, still keep, as JSON.

        May take seconds.
        """
        ranks = frozenset(range(MAX_RANKS) if rank is None else (rank,))
        return listed(self._ask_batches(run, ranks, BatchesQuestion(step))[1], step)

    def start_evidence(self) -> None:
        """Start to gather evidence."""
        self._evidence.start()

    def judge(self) -> None:
        """Send what still fires of an earlier daemon to new sinks; call it once its runs have returned or are lost."""
        self._delivery.judge()

    def stop_evidence(self) -> None:
        """Stop to ask ranks for evidence; call it before ingest stops."""
        self.hangs.stop()
        self._evidence.stop()

    def stop(self) -> None:
        """Send the notifications that wait, for some seconds; call it after the pipeline has stopped."""
        self._delivery.stop()

    def sinks(self, section: AlertsSection) -> list[Sink]:
        """Return the sinks of new settings, for `reconfigure`.

        Raises:
            SinkError: A sink cannot be used.
        """
        return sinks(section.sinks, self._about)

    def reconfigure(self, section: AlertsSection, new_sinks: Sequence[Sink]) -> None:
        """Apply the settings that can change at once; *new_sinks* are their `sinks`."""
        self.active.disabled, self._runs.section = _disabled(section), section
        self._delivery.change(new_sinks)  # also if the settings are equal: a file that they name may have changed

    def restored_stalls(self) -> list[Stall]:
        """Return the stalls of the alerts that fired when an earlier daemon ended."""
        watches = (source for source in self.sources if isinstance(source, RunWatch))
        return [stall for watch in watches for stall in watch.changed_stalls()]

    def batch(self) -> Batch:
        """Return the counters of the sinks."""
        return Batch("notifications", self._delivery.samples(), complete=True)

    def sink_statuses(self) -> dict[str, Any]:
        """Return the state of the sinks by name, for the API."""
        return self._delivery.statuses()


def _disabled(section: AlertsSection) -> DisabledAlerts:
    """Return the alerts that are turned off, and log the names that are no alert."""
    for line in unknown_alerts(section):
        _log.warning("%s", line)
    return DisabledAlerts(section.off)


def _regressions(section: AlertsSection, history: HistoryRecorder, fired: Sequence[Alert]) -> Iterator[Regressions]:
    """Yield the source that compares live runs with their baselines, if alerts are enabled."""
    if section.enabled:
        keys = [rule.query.key for rule in rules(section) if rule.query.key]
        source = Regressions(history.database, section.thresholds.performance_ratio, keys=keys)
        for alert in fired:
            source.restore(alert)
        yield source


def last_attempt(history: HistoryRecorder, run: str) -> int:
    """Return the last attempt of a run; 0 if the history cannot be read."""
    with suppress(UnreadableError):
        return (history.last_attempt(run) or (0, None))[0]
    return 0
