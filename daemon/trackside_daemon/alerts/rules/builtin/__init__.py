"""The built-in threshold rules, for GPUs and for the rest of the machine.

In: the thresholds of the configuration. Out: rules, evaluated by the daemon and written as PromQL.
"""

from dataclasses import replace
from itertools import chain

from trackside_daemon.alerts.rules.builtin import gpu, machine
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.alerts.settings import ThresholdsSection
from trackside_daemon.model.troubles import TROUBLES


def subsystems(thresholds: ThresholdsSection) -> dict[str, list[Rule]]:
    """Return the rules by what they are about, with their next steps; a rule is behind those that inhibit it."""
    found = {**gpu.rules(thresholds), **machine.rules(thresholds)}
    return {name: [_described(rule) for rule in rules] for name, rules in found.items()}


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """Return all built-in rules."""
    return [*chain.from_iterable(subsystems(thresholds).values())]


def _described(rule: Rule) -> Rule:
    advice = TROUBLES[rule.alert].advice(rule.variant or rule.severity)
    return replace(rule, description=f"Since {{since}}. {advice}")
