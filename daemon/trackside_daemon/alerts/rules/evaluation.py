"""Evaluation of the rules once per tick: a condition that lasts long enough is a finding, and so is its end."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.alerts.rules.template import fill
from trackside_daemon.alerts.rules.vector import Baseline, Families, FamilyValues, Labels, Vector
from trackside_daemon.model.families.alerts import OWNER
from trackside_daemon.model.families.training import RUN_INFO, STEP
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch, json_number
from trackside_daemon.model.records import Alert
from trackside_daemon.model.state import State
from trackside_daemon.model.text import utc

TICK = "sampler"  # source of the last batch of a tick, when the state has all others of that tick
MAX_ALERTS_OF_RULE = 64  # most alerts of one rule that fire at once; further ones would add no information

NamedLabels = tuple[tuple[str, str], ...]


class _RuleAlert:
    """Alert of one rule, pending or firing.

    All times are seconds of the monotonic clock, except *began*, in Unix seconds.
    """

    __slots__ = ("began", "fires", "keep_until", "labels", "last", "reference", "run", "since", "since_step", "value")

    def __init__(self, labels: NamedLabels, now: float, began: float, step: float = 0.0) -> None:
        self.labels = labels
        self.since_step = step
        self.reference: float | None = None
        self.run = ""
        self.since = self.last = now
        self.began = began
        self.keep_until = 0.0
        self.value = 0.0
        self.fires = False


class _RuleState:
    """Rule with its alerts, by the labels of its vector.

    Attributes:
        alerts: Pending and firing alerts.
        cooldowns: Time until which an ended alert may not fire again.
        to_restore: Alerts of an earlier daemon that are not restored yet.
    """

    def __init__(self, rule: Rule, baseline: Baseline) -> None:
        self.rule = rule
        self.vector = Vector(rule.query, baseline)
        self.runs = None if rule.of_run is None else Vector(rule.of_run)
        self.alerts: dict[Labels, _RuleAlert] = {}
        self.cooldowns: dict[Labels, float] = {}
        self.to_restore: list[Alert] = []


class RuleEvaluator:
    """Finding source that evaluates rules over the newest values.

    Args:
        state: Newest values of all families.
        rules: Rules in the order of their evaluation; an inhibiting rule comes before those that it inhibits.
        clock: Monotonic clock, in seconds, which the state uses too.
        wall: Unix time, in seconds, for the findings.
        baseline: Returns the value of a run's baseline, by the run's id, the key and the step; None without one.
    """

    def __init__(
        self,
        state: State,
        rules: Iterable[Rule],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        baseline: Baseline = lambda *_: None,
    ) -> None:
        self._state = state
        self._rules = [_RuleState(rule, baseline) for rule in rules]
        self._clock = clock
        self._wall = wall
        vectors = [vector for state in self._rules for vector in (state.vector, state.runs) if vector is not None]
        self._names = frozenset(name for vector in vectors for name in vector.names()) | {RUN_INFO.name, STEP.name}
        self._firing: dict[tuple[str, NamedLabels], int] = {}

    def accept(self, batch: Batch) -> list[Finding]:
        """Return the findings of a tick if the batch is its last."""
        return self.evaluate(self._clock()) if batch.source == TICK else []

    def evaluate(self, now: float) -> list[Finding]:
        """Return what begins and what ends at *now*, in seconds of the monotonic clock."""
        named = self._state.named(now, self._names)
        families = {name: FamilyValues(metric, values) for name, (metric, values) in named.items()}
        findings: list[Finding] = []
        for state in self._rules:
            findings += self._evaluate(state, now, families)
        return findings

    def restore(self, alert: Alert) -> None:
        """Continue an alert that fired when an earlier daemon ended, until its rule has enough values to decide."""
        for state in self._rules:
            if (state.rule.alert, state.rule.severity) == (alert.alert, alert.severity):
                state.to_restore.append(alert)

    def _evaluate(self, state: _RuleState, now: float, families: Families) -> Iterator[Finding]:
        rule, alerts = state.rule, state.alerts
        series = state.vector.evaluate(now, families)
        if rule.absent:
            # An absent family has no series, so the only alert has no labels of one.
            series = {} if series else {(): 0.0}
        if state.to_restore:
            yield from self._restore(state, now)
        runs = [] if state.runs is None or not series else _rows(state.runs, now, families)
        for labels, value in series.items():
            alert = alerts.get(labels)
            if alert is None:
                named = self._named(state, labels)
                if state.runs is not None:
                    named = _with_run(named, runs, state.runs.query.on)
                alert = alerts[labels] = _RuleAlert(named, now, self._wall(), _step(rule, named, families))
            # Its condition then counts as not met, so it ends while it is inhibited, or with the run that had joined it.
            if (rule.inhibited_by and self._is_inhibited(rule, alert.labels)) or _has_lost_run(state, alert, runs):
                continue
            alert.value, alert.last = value, now
            lasts = now - alert.since >= rule.lasting
            if lasts and rule.lasting_steps:
                lasts = _step(rule, alert.labels, families) - alert.since_step >= rule.lasting_steps
            if not alert.fires and lasts and self._may_fire(state, labels, now):
                yield self._begin(state, labels, alert, families)
        # Otherwise every alert meets its condition, and no search for ended ones is needed.
        if len(alerts) > len(series) or rule.inhibited_by or state.runs is not None:
            yield from self._end(state, now)

    def _restore(self, state: _RuleState, now: float) -> Iterator[Finding]:
        """Yield the restored alerts as open, once the labels of the vector are known; let windows fill before they end."""
        if not state.vector.is_bound and not state.rule.absent:
            return
        names = () if state.rule.absent else state.vector.labels
        for record in state.to_restore:
            owner = {*OWNER}.difference(names)  # of a run: a series of another program may have such a label, too
            about = tuple(sorted(item for item in record.labels.items() if item[0] not in owner))
            # Several rules may have this name; one that is about something else would never see its end.
            if not state.rule.absent and {name for name, _ in about} - {*names, "run"}:
                continue
            alert = _RuleAlert(about, now, record.started)
            alert.fires, alert.run = True, record.run
            # The windows are empty after a restart, so the condition cannot be evaluated yet.
            alert.keep_until = now + max(state.rule.query.window, state.rule.lasting)
            labels = tuple(record.labels.get(name, "") for name in names)
            state.alerts[labels] = alert
            reference = record.evidence.get("reference")
            if state.vector.past is not None and isinstance(reference, float | int):
                alert.reference = float(reference)
                state.vector.past.references[record.run, labels] = alert.reference
            self._count(state.rule, alert, 1)
            yield record.as_finding(self._wall())._replace(severity=state.rule.severity, labels=alert.labels)
        state.to_restore.clear()

    def _may_fire(self, state: _RuleState, labels: Labels, now: float) -> bool:
        if state.cooldowns and state.cooldowns.get(labels, now) > now:
            return False
        return sum(alert.fires for alert in state.alerts.values()) < MAX_ALERTS_OF_RULE

    def _is_inhibited(self, rule: Rule, labels: NamedLabels) -> bool:
        return any(
            alert.labels == labels
            for other in self._rules
            if other.rule.alert in rule.inhibited_by
            for alert in other.alerts.values()
        )

    def _named(self, state: _RuleState, labels: Labels) -> NamedLabels:
        if state.rule.absent:
            matchers = state.rule.query.matchers
            return tuple(sorted((matcher.label, matcher.value) for matcher in matchers if matcher.operator == "="))
        pairs = zip(state.vector.labels, labels, strict=True)
        return tuple(sorted((name, value) for name, value in pairs if value))

    def _begin(self, state: _RuleState, labels: Labels, alert: _RuleAlert, families: Families) -> Finding:
        alert.fires, alert.run = True, run_id_of(dict(alert.labels).get("run", ""), families)
        if state.vector.past is not None:
            alert.reference = state.vector.past.references.get((alert.run, labels))
        self._count(state.rule, alert, 1)
        return self._finding(state.rule, alert)

    def _end(self, state: _RuleState, now: float) -> Iterator[Finding]:
        """Remove the alerts whose condition was not met at *now*, and yield the end of those that fired."""
        rule = state.rule
        for labels, alert in [*state.alerts.items()]:
            if alert.last == now or now < alert.keep_until:
                continue
            if alert.fires and now - alert.last < rule.keep_firing:
                continue
            del state.alerts[labels]
            if not alert.fires:
                continue
            if rule.cooldown:
                state.cooldowns = {key: until for key, until in state.cooldowns.items() if until > now}
                state.cooldowns[labels] = now + rule.cooldown
            # Rules for the same alert share its labels, so it ends with the last of them.
            if not self._count(rule, alert, -1):
                yield self._finding(rule, alert, over=True)

    def _count(self, rule: Rule, alert: _RuleAlert, change: int) -> int:
        """Change and return the number of rules that report the same alert."""
        key = (rule.alert, alert.labels)
        count = self._firing.pop(key, 0) + change
        if count > 0:
            self._firing[key] = count
        return count

    def _finding(self, rule: Rule, alert: _RuleAlert, *, over: bool = False) -> Finding:
        numbers = {"value": alert.value, "threshold": rule.threshold}
        texts = {**dict(alert.labels), "since": utc(alert.began, "%H:%M:%S"), "window": rule.window}
        return Finding(
            rule.alert,
            rule.severity,
            alert.labels,
            self._wall(),
            fill(rule.summary, numbers, texts),
            fill(rule.description, numbers, texts),
            over=over,
            run=alert.run,
            evidence={
                "value": json_number(alert.value),
                "since": alert.began,
                **({} if alert.reference is None else {"reference": json_number(alert.reference)}),
            },
        )


def _rows(vector: Vector, now: float, families: Families) -> list[dict[str, str]]:
    return [dict(zip(vector.labels, one, strict=True)) for one in vector.evaluate(now, families)]


def _with_run(labels: NamedLabels, runs: Iterable[Mapping[str, str]], on: Iterable[str]) -> NamedLabels:
    """Return the labels of an alert with the only run of the series that join it; as they are if there are several or none."""
    named = dict(labels)
    found = {one["run"] for one in runs if all(one[name] == named.get(name, "") for name in on)}
    return labels if "run" in named or len(found) != 1 else tuple(sorted({**named, "run": found.pop()}.items()))


def _has_lost_run(state: _RuleState, alert: _RuleAlert, runs: Iterable[Mapping[str, str]]) -> bool:
    """Return whether the run that `_with_run` has added to an alert is none of those that are there now."""
    joined = state.runs is not None and "run" not in state.vector.labels
    return joined and dict(alert.labels).get("run", "") not in {"", *(one["run"] for one in runs)}


def _step(rule: Rule, labels: NamedLabels, families: Families) -> float:
    """Return the step of the rank with these labels, for a rule that counts steps; 0 if it is unknown."""
    if not rule.lasting_steps or STEP.name not in families:
        return 0.0
    named = dict(labels)
    step = families[STEP.name].values.get(tuple(named.get(name, "") for name in STEP.labels), 0.0)
    return step if isinstance(step, float) else 0.0


def run_id_of(run: str, families: Families) -> str:
    """Return the id of the run with this name; empty for the machine."""
    if not run or RUN_INFO.name not in families:
        return ""
    name, run_id = RUN_INFO.labels.index("run"), RUN_INFO.labels.index("run_id")
    return next((labels[run_id] for labels in families[RUN_INFO.name].values if labels[name] == run), "")
