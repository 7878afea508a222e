"""Query of a rule: the series of a family, a function over them, and a condition.

The daemon evaluates each query itself (`trackside_daemon.alerts.rules.vector`), and writes it as PromQL; both mean the same.
Where they could differ, both do the safe thing: a mean and a prediction need a full window, and a divisor is greater than 0.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from trackside_daemon.model.metric import Metric

Function = Literal["value", "rate", "change", "mean", "predict"]
Past = Literal["best", "start", "baseline"]
Operator = Literal["=", "!=", "=~", "!~"]


class Targets(NamedTuple):
    """Labels that Prometheus adds to all series of a daemon. A missing label equals another missing one.

    Attributes:
        clusters: Labels of the cluster; equal names of machines or runs in two clusters or namespaces stay two.
        places: Labels that differ between the machines of one run, including those of a PodMonitor.
    """

    clusters: tuple[str, ...] = ("cluster",)
    places: tuple[str, ...] = ("instance", "node", "pod")

    @property
    def sites(self) -> tuple[str, ...]:
        """Labels within which the name of a machine or a run is unique."""
        return (*self.clusters, "namespace")

    @property
    def place(self) -> str:
        """Labels for ``without``, over all machines of a run."""
        return ", ".join(self.places)

    def of_machine(self, *labels: str) -> str:
        """Return labels for ``on``: only series of one daemon are joined, and daemons stay separate.

        While a pod is replaced, two of them have the same instance.
        """
        return ", ".join((*self.sites, "job", "instance", "pod", *labels))

    def of_site(self, *labels: str) -> str:
        """Return labels for ``on`` and ``by``: series of one site are joined or counted."""
        return ", ".join((*self.sites, *labels))

    def of_cluster(self, *labels: str) -> str:
        """Return labels for ``on`` and ``by``: daemons of one cluster are counted."""
        return ", ".join((*self.clusters, *labels))

    def machine(self) -> str:
        """Return the template of an annotation that names the daemon's machine, where it is, and of a Pod the node."""
        node = "{{ if and $labels.node (ne $labels.node $labels.instance) }} on {{ $labels.node }}{{ end }}"
        return f"{{{{ $labels.instance }}}}{node}{self.text()}"

    def text(self, *labels: str) -> str:
        """Return the template of an annotation that names the cluster and the other *labels*, where there are any."""
        named = (*self.clusters, *labels)
        return "".join(f"{{{{ with $labels.{label} }}}} in {{{{ . }}}}{{{{ end }}}}" for label in named)


TARGETS = Targets()
POD = "pod, container, endpoint"  # labels of a target that change when a pod is replaced, while the machine stays

# Recorded `up` of the daemons: it also tells since when Prometheus has these rules, before which nothing is new to it.
UP = "instance:trackside_up:last"
# Recorded 1 of the daemons whose machine is drained or cordoned; only `on` their site, job and instance.
DRAINED = "instance:trackside_drained:last"
# Recorded 1 of the sidecars on a node with a daemon of its own, which alone judges the machine; `on` as `DRAINED`.
SECOND = "instance:trackside_second:last"
BEGAN = "process_start_time_seconds"  # start of the daemon, in Unix seconds, as prometheus_client exports it


@dataclass(frozen=True)
class Matcher:
    """Selects series by one label, as PromQL does: a regular expression matches the whole value."""

    label: str
    value: str
    operator: Operator = "="

    def matches(self, value: str) -> bool:
        """Return True if a series with this value of the label is selected."""
        if self.operator in ("=", "!="):
            return (value == self.value) is (self.operator == "=")
        return bool(re.fullmatch(self.value, value)) is (self.operator == "=~")

    def promql(self) -> str:
        """Return the matcher in PromQL."""
        return f"{self.label}{self.operator}{json.dumps(self.value, ensure_ascii=False)}"


@dataclass(frozen=True)
class Query:
    """Series of one family, each with one value."""

    metric: Metric  # the family
    matchers: tuple[Matcher, ...] = ()  # all of them must match
    # The ``value``; its ``rate`` per second, or its ``change``, over the window (of a counter, its growth); its
    # ``mean`` over the window; or the value that its trend over the window reaches (``predict``).
    function: Function = "value"
    window: float = 0.0  # seconds
    ahead: float = 0.0  # seconds from now to the predicted value
    # Each series of the counter began at 0 when it appeared, so that its first value is growth too. Prometheus assumes
    # that if it saw the daemon one window ago without the series, or if the daemon has begun since.
    fresh: bool = False
    over: Query | None = None  # divisor of each value; only values greater than 0 divide
    minus: Query | None = None  # subtrahend of each value
    # The values are ratios to the series' own past in its run: its ``best``, which is the lowest for *above* and the
    # highest for *below*, or its ``start``; or to the ``baseline`` of the run. Only values greater than 0 divide.
    # PromQL cannot express it.
    past: Past | None = None
    key: str = ""  # what is read of the baseline: a key, or the name of the family of steps for its steps per second
    on: tuple[str, ...] = ()  # labels that join *over*, *minus*, *only* and *unless*; none for one value for all series
    # Labels of the family to keep, with the most extreme of the series that share them; None for all labels.
    by: tuple[str, ...] | None = None
    above: float | None = None  # keep only series with a greater value
    below: float | None = None  # keep only series with a smaller value
    only: tuple[Query, ...] = ()  # keep only series that have a partner in each of these
    unless: tuple[Query, ...] = ()  # keep only series that have a partner in none of these

    def __post_init__(self) -> None:
        if self.function != "value" and self.window <= 0:
            raise ValueError(f"{self.metric.name}: the {self.function} of a value needs a window")
        if self.over is not None and self.minus is not None:
            raise ValueError(f"{self.metric.name}: over and minus cannot be combined")

    @property
    def is_counter(self) -> bool:
        """True for a counter, which only grows, and restarts at 0."""
        return self.metric.kind == "counter"

    def promql(self, targets: Targets = TARGETS) -> str:
        """Return the query in PromQL, which keeps all labels of its target; the bounds are left out if there are none."""
        on = f"on ({targets.of_machine(*self.on)})"
        text = self._windowed(targets)
        if self.over is not None:
            text = f"{text} / {on} group_left () ({self.over.promql(targets)} > 0)"
        if self.minus is not None:
            text = f"({text} - {on} group_left () ({self.minus.promql(targets)}))"
        dropped = [label for label in self.metric.labels if self.by is not None and label not in self.by]
        if dropped:
            extreme = "min" if self.above is None and self.below is not None else "max"
            text = f"{extreme} without ({', '.join(dropped)}) ({text})"
        for sign, bound in ((">", self.above), ("<", self.below)):
            if bound is not None:
                text = f"{text} {sign} {_number(bound)}"
        for word, others in (("and", self.only), ("unless", self.unless)):
            for other in others:
                text = f"({text}) {word} {on} ({other.promql(targets)})"
        return text

    def widened(self, least: float) -> Query:
        """Return the query with windows of *least* seconds at least, for a Prometheus that scrapes less often."""
        window = max(self.window, least) if self.function != "value" else self.window
        return replace(
            self,
            window=window,
            only=tuple(part.widened(least) for part in self.only),
            unless=tuple(part.widened(least) for part in self.unless),
            over=None if self.over is None else self.over.widened(least),
            minus=None if self.minus is None else self.minus.widened(least),
        )

    def selector(self) -> str:
        """Return the selector of the series in PromQL."""
        name = positive(self.metric) if self.fresh else self.metric.name
        matchers = ", ".join(matcher.promql() for matcher in self.matchers)
        return f"{name}{{{matchers}}}" if matchers else name

    def _windowed(self, targets: Targets) -> str:
        series, window = self.selector(), duration(self.window)
        ranged, before = f"{series}[{window}]", f"{series} offset {window}"
        if self.function == "value":
            return series
        if self.function == "rate":
            return f"rate({ranged})" if self.is_counter else f"deriv({ranged})"
        # The offset selects series that existed one window ago, so that the window is full.
        if self.function == "mean":
            return f"(avg_over_time({ranged}) and {before})"
        if self.function == "predict":
            return f"(predict_linear({ranged}, {_number(self.ahead)}) and {before})"
        if self.fresh:
            # increase() misses the first value of a series, so a series that appeared within the window counts with its
            # value.
            seen = f"{UP} offset {window} == 1 or time() - {BEGAN} < {_number(self.window)}"
            return f"(({series} unless {before}) and on ({targets.of_machine()}) ({seen}) or increase({ranged}))"
        return f"increase({ranged})" if self.is_counter else f"delta({ranged})"


def positive(metric: Metric) -> str:
    """Return the name of the recorded series of a counter that have grown beyond 0; Prometheus reads them much faster."""
    return f"instance:{metric.family}:positive"


def duration(seconds: float) -> str:
    """Return a PromQL duration, in the largest unit that divides it."""
    for length, unit in ((3600, "h"), (60, "m"), (1, "s")):
        if seconds and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else repr(value)
