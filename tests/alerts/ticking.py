"""A machine whose families are what a test says, sampled once a second by a clock that the test turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules import builtin
from trackside_daemon.alerts.rules.evaluation import Rules
from trackside_daemon.alerts.rules.family_catalogue import catalogue
from trackside_daemon.alerts.settings import ThresholdsSection
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
    """The watcher that is tested, with a state and a clock."""

    def __init__(self, rules: Iterable[Rule] | None = None) -> None:
        self.now = 1000.0
        self.state = State()
        built = builtin.rules(ThresholdsSection()) if rules is None else rules
        self.watcher = Rules(self.state, built, lambda: self.now, lambda: EPOCH + self.now)
        self.alarms: list[Finding] = []

    def tick(self, values: Mapping[str, float], every: float = 1.0) -> list[Finding]:
        """One tick at which all values are these, and *every* seconds until the next."""
        self.state.update(Batch("test", [sample(name, value) for name, value in values.items()], complete=True))
        found = self.judge()
        self.now += every
        return found

    def judge(self) -> list[Finding]:
        """The end of a tick."""
        found = self.watcher.accept(Batch("sampler"))
        self.alarms += found
        return found

    def run(self, seconds: int, values: Callable[[float], Mapping[str, float]], every: float = 1.0) -> list[Finding]:
        """Ticks for some seconds, with the values as they are so many seconds after the first of them."""
        begun, found = self.now, []
        while self.now <= begun + seconds:
            found += self.tick(values(self.now - begun), every)
        return found


def sample(series: str, value: float) -> Sample:
    """As `Values` has it."""
    name, _, rest = series.partition("{")
    metric = FAMILIES[name]
    given = dict(part.split("=", 1) for part in rest.rstrip("}").split(",") if part)
    assert set(given) <= set(metric.labels), series
    return Sample(metric, tuple(given.get(label, "") for label in metric.labels), value)
