"""Who watches the families of GPUs, host and processes: the rules, built in and of the user's own, and the leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts import builtin, custom
from trackside_daemon.alerts.catalogue import catalogue
from trackside_daemon.alerts.leaks import Leaks
from trackside_daemon.alerts.rules import Rules
from trackside_daemon.ingest import sessions
from trackside_daemon.metric import Metric
from trackside_daemon.pipeline import FAILURES
from trackside_daemon.sampler import Sampler

if TYPE_CHECKING:
    from trackside_daemon.alert_sections import AlertsSection
    from trackside_daemon.alerts.rule import Rule
    from trackside_daemon.state import State


def rules(section: AlertsSection) -> list[Rule]:
    """All rules, the user's last.

    Raises:
        RuleError: One of the user's cannot be used.
    """
    ingest = (one for one in vars(sessions).values() if isinstance(one, Metric))
    families = catalogue((*Sampler.metrics, *ingest, FAILURES))
    return [*builtin.rules(section.thresholds), *custom.rules(section.rules, families)]


def watchers(state: State, section: AlertsSection) -> list[Rules | Leaks]:
    """Those of one daemon.

    Raises:
        RuleError: As `rules`.
    """
    return [Rules(state, rules(section)), Leaks(state, section.thresholds.leak_ratio)]
