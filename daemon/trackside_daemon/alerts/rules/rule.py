"""A rule: when a query has series for long enough, each of them is an alert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import duration, listed
from trackside_daemon.alerts.rules.template import fill, prometheus, written

if TYPE_CHECKING:
    from trackside_daemon.alerts.rules.query import Query
    from trackside_daemon.model.finding import Severity


@dataclass(frozen=True)
class Rule:
    """What is wrong when, how bad that is, and how it is said.

    Attributes:
        alert: The alert's name; several rules may find the same.
        severity: How bad it is.
        when: It is so for each series that this has.
        summary: A template, as `trackside_daemon.alerts.rules.template` has it: what it is, where and how bad.
        description: A template: since when, and what to look at next.
        lasting: Seconds for which it is so before the alert fires (``for``).
        keep_firing: Seconds for which it is not so before the alert ends.
        cooldown: Seconds after its end for which it does not fire anew; Prometheus knows no such thing.
        absent: It is so when *when* has no series at all.
        variant: What tells it apart from another rule for the same alert in a file of Prometheus rules.
        because: Alerts that are the cause: while one of them, with the same labels, is so, this one is not told.
    """

    alert: str
    severity: Severity
    when: Query
    summary: str
    description: str = ""
    lasting: float = 0.0
    keep_firing: float = 0.0
    cooldown: float = 0.0
    absent: bool = False
    variant: str = ""
    because: tuple[str, ...] = ()

    @property
    def threshold(self) -> float:
        """The bound that is passed; 0 when there is none."""
        return next((bound for bound in (self.when.above, self.when.below) if bound is not None), 0.0)

    @property
    def window(self) -> str:
        """What is looked at, as it stands behind "the last": ``minute``, ``10 min``."""
        minutes = self.when.window / 60
        return "minute" if minutes == 1 else f"{minutes:.3g} min"

    def promql(self, prefix: str = "") -> str:
        """The condition as a PromQL expression, which has a series for each alert.

        Args:
            prefix: Of the names of the alerts.
        """
        if self.absent:
            return f"absent({self.when.selector()})"
        text = self.when.promql()
        for cause in self.because:
            text = f'({text}) unless on ({listed(self.when.by or ())}) ALERTS{{alertname="{prefix}{cause}"}}'
        return text

    def prometheus(self, prefix: str = "") -> dict[str, object]:
        """The rule as a Prometheus rule file has it, with a prefix of the alert's name."""
        rule: dict[str, object] = {"alert": prefix + self.alert, "expr": self.promql(prefix)}
        if self.lasting:
            rule["for"] = duration(self.lasting)
        if self.keep_firing:
            rule["keep_firing_for"] = duration(self.keep_firing)
        texts = {"summary": self.summary, "description": self.description}
        known = {"{threshold}": written(self.threshold), "{window}": self.window}
        fixed = {name: _replaced(text, known) for name, text in texts.items()}
        annotations = {name: prometheus(_forms(text, self.threshold)) for name, text in fixed.items() if text}
        labels = {"severity": self.severity, **({"variant": self.variant} if self.variant else {})}
        return {**rule, "labels": labels, "annotations": annotations}


def _replaced(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(name, value)
    return text


def _forms(text: str, threshold: float) -> str:
    """The threshold in its forms, which does not change."""
    for form in ("percent", "bytes", "duration", "whole"):
        text = text.replace(f"{{threshold:{form}}}", fill(f"{{threshold:{form}}}", {"threshold": threshold}, {}))
    return text
