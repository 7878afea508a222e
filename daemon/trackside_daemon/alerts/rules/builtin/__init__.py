"""The built-in threshold rules, for GPUs and for the rest of the machine.

In: the thresholds of the configuration. Out: rules, evaluated by the daemon and written as PromQL.
"""

from dataclasses import replace

from trackside_daemon.alerts.rules.builtin import gpu, machine
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.alerts.settings import ThresholdsSection
from trackside_daemon.model.troubles import TROUBLES


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """Return all built-in rules with their next steps, an inhibiting rule before those that it inhibits."""
    return [_described(rule) for subject in (gpu, machine) for rule in subject.rules(thresholds)]


def _described(rule: Rule) -> Rule:
    advice = TROUBLES[rule.alert].advice(rule.variant or rule.severity)
    return replace(rule, description=f"Since {{since}}. {advice}")
