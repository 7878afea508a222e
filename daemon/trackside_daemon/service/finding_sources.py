"""The finding sources of a daemon: detectors of samples and runs, and rules over the families of GPUs, host and processes."""

import time
from collections.abc import Callable, Iterable, Sequence

from trackside_daemon.alerts.disabled import unknown_names
from trackside_daemon.alerts.process_memory_leaks import ProcessLeaks
from trackside_daemon.alerts.rank_restoring import PastRanks, RankRestoring
from trackside_daemon.alerts.rules import builtin, custom
from trackside_daemon.alerts.rules.evaluation import RuleEvaluator
from trackside_daemon.alerts.rules.fleet import NAMES
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.alerts.settings import AlertsSection, key_roles
from trackside_daemon.alerts.slow_collectives import CollectiveAlerts
from trackside_daemon.alerts.stages import FindingSource
from trackside_daemon.detectors.rank_watch import RankWatch
from trackside_daemon.detectors.run_watch import RunWatch
from trackside_daemon.history.database import Database
from trackside_daemon.model.families.catalogue import catalogue
from trackside_daemon.model.records import Alert
from trackside_daemon.model.state import State
from trackside_daemon.model.troubles import DETECTED, RULED


def rules(section: AlertsSection) -> list[Rule]:
    """Return all rules, the user's last.

    Raises:
        RuleError: A rule of the user cannot be used.
    """
    return [*builtin.rules(section.thresholds), *custom.rules(section.rules, catalogue())]


def unknown_alerts(section: AlertsSection) -> list[str]:
    """Return a line for each name of ``alerts.off`` that is no alert and so has no effect."""
    return list(unknown_names(section.off, alert_names(section)))


def alert_names(section: AlertsSection) -> set[str]:
    """Return the names of all alerts of the daemon, of the user's rules and of the rules for Prometheus."""
    return {*DETECTED, *RULED, *NAMES, *(rule.alert for rule in section.rules)}


# The most time of a start in which detectors learn. The other ranks follow while the daemon serves, except with a history that
# is open exclusively, whose writer would have to wait.
RESTORE_SECONDS, RESTORE_ALONE_SECONDS = 0.5, 2.0


def restoring(
    sources: Iterable[FindingSource], history: Database, fired: Sequence[Alert], section: AlertsSection
) -> RankRestoring:
    """Begin to restore the sources that learn, from the samples of the runs that have not ended, before any client pushes."""
    begun = RankRestoring(sources, PastRanks(history, key_roles(section)), fired)
    if history.is_exclusive:
        begun.start(RESTORE_ALONE_SECONDS)
        begun.give_up()
    else:
        begun.start(RESTORE_SECONDS)
    return begun


def finding_sources(
    state: State,
    section: AlertsSection,
    fired: Sequence[Alert],
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    *,
    attempt: Callable[[str], int] = lambda _: 0,
    report: Callable[[str], str] = lambda _: "",
    baseline: Callable[[str, str, float], float | None] = lambda *_: None,
) -> list[FindingSource]:
    """Return the finding sources of one daemon; none if alerts are disabled.

    Args:
        state: The newest values.
        section: The settings.
        fired: The alerts that fired when the earlier daemon ended.
        clock: Seconds of the monotonic clock.
        wall: Unix time in seconds.
        attempt: Returns the last attempt of a run, by its id, that the earlier daemon saw.
        report: See `RunWatch`.
        baseline: See `RuleEvaluator`.

    Raises:
        RuleError: As `rules`.
    """
    if not section.enabled:
        return []
    roles = key_roles(section)
    ranks = RankWatch(section.thresholds, roles)
    runs = RunWatch(
        stall_after=section.stall_after,
        straggler_window=section.straggler_window,
        thresholds=section.thresholds,
        slow_steps=ranks.slow_steps,
        readings=ranks.readings,
        roles=roles,
        report=report,
    )
    evaluated = RuleEvaluator(state, rules(section), clock, wall, baseline)
    leaks = ProcessLeaks(state, section.thresholds, clock, wall)
    collectives = CollectiveAlerts(state, section.thresholds.collective_ratio, clock, wall)
    for alert in fired:
        runs.restore(alert, attempt(alert.run))
        collectives.restore(alert)
        evaluated.restore(alert)
        leaks.restore(alert)
    return [ranks, runs, evaluated, leaks, collectives]
