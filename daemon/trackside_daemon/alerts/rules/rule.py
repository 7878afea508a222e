"""Rule: each series that its query returns for long enough is an alert."""

import json
from dataclasses import dataclass

from trackside_daemon.alerts.rules.query import DRAINED, POD, SECOND, TARGETS, Query, Targets, duration
from trackside_daemon.alerts.rules.template import fill, format_number, prometheus_template
from trackside_daemon.model.families.daemon import BUILD_INFO
from trackside_daemon.model.finding import Severity


@dataclass(frozen=True)
class Rule:
    """Condition of an alert, its severity and its texts."""

    alert: str  # name of the alert; several rules may have the same
    severity: Severity  # severity of the alert
    query: Query  # condition, met for each series that it returns
    summary: str  # template, see `trackside_daemon.alerts.rules.template`: what is wrong, where and how bad
    description: str = ""  # template: since when, and what to check next
    lasting: float = 0.0  # seconds for which the condition is met before the alert fires (``for``)
    keep_firing: float = 0.0  # seconds for which the condition is not met before the alert ends
    cooldown: float = 0.0  # seconds after its end for which the alert does not fire again; Prometheus has no equivalent
    lasting_steps: int = 0  # steps for which the condition is met before the alert fires; Prometheus has no equivalent
    absent: bool = False  # the condition is that *query* returns no series
    variant: str = ""  # label that distinguishes rules for the same alert in a Prometheus rule file
    inhibited_by: tuple[str, ...] = ()  # alerts that inhibit this one while their condition is met for the same labels
    # Series with the labels of its ``on`` and ``run``: if all that join an alert have one run, it is about this run.
    # Prometheus then has the daemon's own alert, with the owner of the run, and does not evaluate the rule.
    of_run: Query | None = None

    @property
    def threshold(self) -> float:
        """Bound of the query; 0 if it has none."""
        return next((bound for bound in (self.query.above, self.query.below) if bound is not None), 0.0)

    @property
    def window(self) -> str:
        """Window of the query as a text that follows "the last": ``minute``, ``10 min``."""
        minutes = self.query.window / 60
        return "minute" if minutes == 1 else f"{minutes:.3g} min"

    @property
    def needs_daemon(self) -> bool:
        """True if Prometheus cannot evaluate the rule: it knows no run's own past or owner, and counts no steps."""
        return self.query.past is not None or self.lasting_steps > 0 or self.of_run is not None

    def promql(self, prefix: str = "", targets: Targets = TARGETS) -> str:
        """Return the condition as a PromQL expression, which has one series per alert.

        Args:
            prefix: Prefix of the names of alerts.
            targets: Labels of the daemons.
        """
        if self.absent:
            daemons = f"group without ({', '.join(BUILD_INFO.labels)}) ({BUILD_INFO.name})"
            text = f"{daemons} unless on ({targets.of_machine()}) {self.query.selector()}"
            for matcher in self.query.matchers:
                if matcher.operator == "=":
                    value = json.dumps(matcher.value.replace("$", "$$"), ensure_ascii=False)
                    text = f'label_replace({text}, "{matcher.label}", {value}, "", "")'
            return text
        text = self.query.promql(targets)
        # Prometheus has no inhibition between rules. ALERTS includes pending alerts.
        for alert in self.inhibited_by:
            on = targets.of_site("job", "instance", *self.query.by or ())
            text = f'({text}) unless on ({on}) ALERTS{{alertname="{prefix}{alert}"}}'
        return text

    def prometheus(self, prefix: str = "", targets: Targets = TARGETS) -> dict[str, object]:
        """Return the rule as a Prometheus rule file has it, with a prefix of the alert's name."""
        # While a pod is replaced, the alert of its machine continues.
        extreme = "min" if self.query.above is None and self.query.below is not None else "max"
        expr, machine = (
            f"{extreme} without ({POD}) ({self.promql(prefix, targets)})",
            targets.of_site("job", "instance"),
        )
        for quiet in (SECOND, DRAINED) if self.severity == "critical" else (SECOND,):
            expr += f" unless on ({machine}) {quiet}"
        rule: dict[str, object] = {"alert": prefix + self.alert, "expr": expr}
        if self.lasting:
            rule["for"] = duration(self.lasting)
        if self.keep_firing:
            rule["keep_firing_for"] = duration(self.keep_firing)
        texts = {"summary": self.summary, "description": self.description}
        # Prometheus evaluates the annotations, so only constants are filled in here.
        constants = {"{threshold}": format_number(self.threshold), "{window}": self.window}
        fixed = {name: _replaced(text, constants) for name, text in texts.items()}
        annotations = {
            name: prometheus_template(_with_threshold(text, self.threshold)) for name, text in fixed.items() if text
        }
        labels = {"severity": self.severity, **({"variant": self.variant} if self.variant else {})}
        return {**rule, "labels": labels, "annotations": annotations}


def _replaced(text: str, constants: dict[str, str]) -> str:
    for name, value in constants.items():
        text = text.replace(name, value)
    return text


def _with_threshold(text: str, threshold: float) -> str:
    """Return the text with all forms of the threshold filled in, because it is constant."""
    for form in ("percent", "bytes", "duration", "whole"):
        text = text.replace(f"{{threshold:{form}}}", fill(f"{{threshold:{form}}}", {"threshold": threshold}, {}))
    return text
