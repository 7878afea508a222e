"""Who looks for trouble in a daemon: at what is pushed, at runs, and by rules at the families of GPUs, host and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts import builtin, custom
from trackside_daemon.alerts.catalogue import catalogue
from trackside_daemon.alerts.leaks import Leaks
from trackside_daemon.alerts.parts import watchers
from trackside_daemon.alerts.rules import Rules
from trackside_daemon.ingest import sessions
from trackside_daemon.metric import Metric
from trackside_daemon.pipeline import FAILURES
from trackside_daemon.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.alert_sections import AlertsSection
    from trackside_daemon.alerts.parts import Watcher
    from trackside_daemon.alerts.rule import Rule
    from trackside_daemon.record import Alert
    from trackside_daemon.state import State


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


def all_watchers(state: State, section: AlertsSection, fired: Iterable[Alert]) -> list[Watcher]:
    """Those of one daemon; none where alerts are not wanted.

    Args:
        state: The newest values.
        section: The settings.
        fired: What fired when the daemon before this one ended.

    Raises:
        RuleError: As `rules`.
    """
    if not section.enabled:
        return []
    judges, leaks = Rules(state, rules(section)), Leaks(state, section.thresholds.leak_ratio)
    for alert in fired:
        judges.adopt(alert)
        leaks.adopt(alert)
    return [*watchers(stall_after=section.stall_after), judges, leaks]
