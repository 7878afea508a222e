"""What a rule looks at: series of a family, how they are looked at, and when it is so.

Each query is evaluated by the daemon (`trackside_daemon.alerts.rules.vector`) and can be written as PromQL, and the two mean
the same. Where they could differ, both are told to do the safe thing: a mean and a prediction need a window that is full,
and what divides is greater than nought.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Literal

How = Literal["value", "rate", "change", "mean", "predict"]
Operator = Literal["=", "!=", "=~", "!~"]

MACHINE = ("job", "instance", "pod")
"""What Prometheus adds to all series of one daemon: they alone are joined, and they stay apart. While a pod is replaced two
of them have one instance; a label that is missing equals one that is missing too."""


BEGAN = "process_start_time_seconds"
"""When the daemon began, in Unix seconds; prometheus_client says so on its page."""


@dataclass(frozen=True)
class Matcher:
    """Chooses series by one label, as PromQL does: regular expressions match all of a value."""

    label: str
    value: str
    operator: Operator = "="

    def matches(self, value: str) -> bool:
        """Whether a series with this value of the label is chosen."""
        if self.operator in ("=", "!="):
            return (value == self.value) is (self.operator == "=")
        return bool(re.fullmatch(self.value, value)) is (self.operator == "=~")

    def promql(self) -> str:
        """As PromQL writes it."""
        return f"{self.label}{self.operator}{json.dumps(self.value, ensure_ascii=False)}"


@dataclass(frozen=True)
class Query:
    """Series of one family, each with one value.

    Attributes:
        metric: The family's full name.
        matchers: All of them choose.
        how: The ``value``; its ``rate`` a second, or how much it ``change``d, over the window (of a counter, as it grew);
            its ``mean`` over the window; or what its line over the window will have come to (``predict``).
        window: Seconds.
        ahead: Seconds from now to what is predicted.
        fresh: Each series of the counter began at 0 when it appeared, so that its first value is growth too. Prometheus
            is sure of that when it saw the daemon a window ago, without the series, or the daemon has begun since.
        over: What each value is divided by, where that is more than 0.
        minus: What is subtracted from each value.
        on: The labels by which *over*, *minus*, *only* and *unless* are joined; none for one value for all series.
        by: The labels that are left, of those series the most extreme one; None for all labels.
        above: Only series whose value is greater.
        below: Only series whose value is less.
        only: Only series that have a partner in each of these.
        unless: Only series that have a partner in none of these.
    """

    metric: str
    matchers: tuple[Matcher, ...] = ()
    how: How = "value"
    window: float = 0.0
    ahead: float = 0.0
    fresh: bool = False
    over: Query | None = None
    minus: Query | None = None
    on: tuple[str, ...] = ()
    by: tuple[str, ...] | None = None
    above: float | None = None
    below: float | None = None
    only: tuple[Query, ...] = ()
    unless: tuple[Query, ...] = ()

    def __post_init__(self) -> None:
        if self.how != "value" and self.window <= 0:
            raise ValueError(f"{self.metric}: the {self.how} of a value is over a window, which is missing")
        if self.over is not None and self.minus is not None:
            raise ValueError(f"{self.metric}: a value is divided, or less another, not both")

    @property
    def is_counter(self) -> bool:
        """Whether it only grows, and begins anew at 0."""
        return self.metric.endswith("_total")

    def promql(self) -> str:
        """The query as PromQL, without a condition on top where there is none."""
        on = f"on ({listed(self.on)})"
        text = self._windowed()
        if self.over is not None:
            text = f"{text} / {on} group_left () ({self.over.promql()} > 0)"
        if self.minus is not None:
            text = f"({text} - {on} group_left () ({self.minus.promql()}))"
        if self.by is not None:
            extreme = "min" if self.above is None and self.below is not None else "max"
            text = f"{extreme} by ({listed(self.by)}) ({text})"
        for sign, bound in ((">", self.above), ("<", self.below)):
            if bound is not None:
                text = f"{text} {sign} {_number(bound)}"
        for word, others in (("and", self.only), ("unless", self.unless)):
            for other in others:
                text = f"({text}) {word} {on} ({other.promql()})"
        return text

    def widened(self, least: float) -> Query:
        """With windows of *least* seconds at least, as one that sees fewer values needs them."""
        parts = {
            name: None if one is None else one.widened(least)
            for name, one in (("over", self.over), ("minus", self.minus))
        }
        window = max(self.window, least) if self.how != "value" else self.window
        only, unless = (tuple(one.widened(least) for one in others) for others in (self.only, self.unless))
        return replace(self, window=window, only=only, unless=unless, over=parts["over"], minus=parts["minus"])

    def selector(self) -> str:
        """The series, as PromQL chooses them."""
        chosen = ", ".join(matcher.promql() for matcher in self.matchers)
        return f"{self.metric}{{{chosen}}}" if chosen else self.metric

    def _windowed(self) -> str:
        series, window = self.selector(), duration(self.window)
        ranged, before = f"{series}[{window}]", f"{series} offset {window}"
        if self.how == "value":
            return series
        if self.how == "rate":
            return f"rate({ranged})" if self.is_counter else f"deriv({ranged})"
        if self.how == "mean":
            return f"(avg_over_time({ranged}) and {before})"
        if self.how == "predict":
            return f"(predict_linear({ranged}, {_number(self.ahead)}) and {before})"
        if self.fresh:
            known = f"up offset {window} == 1 or time() - {BEGAN} < {_number(self.window)}"
            return f"(({series} unless {before}) and on ({listed(())}) ({known}) or increase({ranged}))"
        return f"increase({ranged})" if self.is_counter else f"delta({ranged})"


def listed(labels: tuple[str, ...]) -> str:
    """Label names for ``on`` and ``by``, with those of the machine."""
    return ", ".join((*MACHINE, *labels))


def duration(seconds: float) -> str:
    """As PromQL writes it: in the largest unit of which it is a whole number."""
    for length, unit in ((3600, "h"), (60, "m"), (1, "s")):
        if seconds and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else repr(value)
