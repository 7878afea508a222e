"""Machine with the values that a test sets, sampled once a second by a clock of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.rules import builtin
from trackside_daemon.alerts.rules.evaluation import RuleEvaluator
from trackside_daemon.alerts.settings import ThresholdsSection
from trackside_daemon.model.families.catalogue import catalogue
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trackside_daemon.alerts.rules.rule import Rule
    from trackside_daemon.model.finding import Finding

FAMILIES = catalogue()
EPOCH = 1.7e9
"""Unix time at 0 of the clock."""

Values = dict[str, float]
"""Values by series, written ``name`` or ``name{label=value,…}``; labels that are not written are empty."""


class Machine:
    """Rule evaluator with a state and a clock."""

    def __init__(
        self,
        rules: Iterable[Rule] | None = None,
        baseline: Callable[[str, str, float], float | None] = lambda *_: None,
    ) -> None:
        self.now = 1000.0
        self.state = State()
        built = builtin.rules(ThresholdsSection()) if rules is None else rules
        self.evaluator = RuleEvaluator(self.state, built, lambda: self.now, lambda: EPOCH + self.now, baseline)
        self.findings: list[Finding] = []

    @property
    def firing(self) -> set[Any]:
        """The alerts that have begun and not ended: each with its labels."""
        return {key for key, ends in {(one.alert, one.labels): one.over for one in self.findings}.items() if not ends}

    def tick(self, values: Mapping[str, float], every: float = 1.0) -> list[Finding]:
        """Run one tick with these values, and advance the clock by *every* seconds."""
        self.state.update(Batch("test", [sample(name, value) for name, value in values.items()], complete=True))
        found = self.evaluate()
        self.now += every
        return found

    def evaluate(self) -> list[Finding]:
        """Evaluate the rules at the end of a tick."""
        found = self.evaluator.accept(Batch("sampler"))
        self.findings += found
        return found

    def run(self, seconds: int, values: Callable[[float], Mapping[str, float]], every: float = 1.0) -> list[Finding]:
        """Run ticks for some seconds, with the values at each second after the first tick."""
        begun, found = self.now, []
        while self.now <= begun + seconds:
            found += self.tick(values(self.now - begun), every)
        return found


def sample(series: str, value: float) -> Sample:
    """Return the sample of a series that is written as in `Values`."""
    name, _, rest = series.partition("{")
    metric = FAMILIES[name]
    given = dict(part.split("=", 1) for part in rest.rstrip("}").split(",") if part)
    assert set(given) <= set(metric.labels), series
    return Sample(metric, tuple(given.get(label, "") for label in metric.labels), value)
