"""Who looks for trouble in a daemon: at what is pushed, at runs, and by rules at the families of GPUs, host and processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trackside_daemon.alerts.descriptions import DETECTED, RULED
from trackside_daemon.alerts.disabled import unknown_names
from trackside_daemon.alerts.process_leaks import ProcessLeaks
from trackside_daemon.alerts.registry import RestorableSource, sources
from trackside_daemon.alerts.replay_history import past_ranks
from trackside_daemon.alerts.rules import builtin, custom
from trackside_daemon.alerts.rules.evaluation import RuleEvaluator
from trackside_daemon.alerts.rules.family_catalogue import catalogue
from trackside_daemon.alerts.rules.fleet import fleet
from trackside_daemon.ingest import sessions
from trackside_daemon.model.metric import Metric
from trackside_daemon.pipeline.pipeline import FAILURES
from trackside_daemon.sampling.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trackside_daemon.alerts.registry import FindingSource
    from trackside_daemon.alerts.rules.rule import Rule
    from trackside_daemon.alerts.settings import AlertsSection
    from trackside_daemon.history.read.series import Readable
    from trackside_daemon.model.records import Alert
    from trackside_daemon.model.state import State


def families() -> dict[str, Metric]:
    """Those that a rule can name."""
    ingest = (one for one in vars(sessions).values() if isinstance(one, Metric))
    return catalogue((*Sampler.metrics, *ingest, FAILURES))


def rules(section: AlertsSection) -> list[Rule]:
    """All rules, the user's last.

    Raises:
        RuleError: One of the user's cannot be used.
    """
    return [*builtin.rules(section.thresholds), *custom.rules(section.rules, families())]


def misspelt(section: AlertsSection) -> list[str]:
    """A line for each name of ``alerts.off`` that is no alert: it turns nothing off."""
    fixed = (*DETECTED, *RULED, *(one.alert for one in fleet("trackside")))
    return list(unknown_names(section.off, {*fixed, *(rule.alert for rule in section.rules)}))


RECALL_SECONDS = 2.0
"""What a start may take longer for what detectors have to learn: some 20 ms a rank."""


def recall(watchers: Iterable[FindingSource], history: Readable, fired: Sequence[Alert]) -> None:
    """Let those that learn go on from what the *history* has of the runs that have not ended; before anything is pushed."""
    learning = [one for one in watchers if isinstance(one, RestorableSource)]
    for past in past_ranks(history, RECALL_SECONDS) if learning else ():
        for one in learning:
            one.restore_rank(past, fired)


def all_watchers(
    state: State,
    section: AlertsSection,
    fired: Sequence[Alert],
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    *,
    attempt: Callable[[str], int] = lambda _: 0,
) -> list[FindingSource]:
    """Those of one daemon; none where alerts are not wanted.

    Args:
        state: The newest values.
        section: The settings.
        fired: What fired when the daemon before this one ended.
        clock: Seconds of the monotonic clock.
        wall: Unix time in seconds.
        attempt: Tells the last attempt of a run, by its id, that the daemon before this one had seen.

    Raises:
        RuleError: As `rules`.
    """
    if not section.enabled:
        return []
    judges = RuleEvaluator(state, rules(section), clock, wall)
    leaks = ProcessLeaks(state, section.thresholds.leak_ratio, clock, wall)
    for alert in fired:
        judges.restore(alert)
        leaks.restore(alert)
    parts = sources(section, fired, attempt)
    return [*parts, judges, leaks]
