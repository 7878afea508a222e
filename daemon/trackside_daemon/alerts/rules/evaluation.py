"""The rules, judged once a tick: what is so for long enough is an alarm, and once it is so no more that is one too."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.template import fill
from trackside_daemon.alerts.rules.vector import Family, Labels, Vector
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import json_number
from trackside_daemon.training.families import RUN_INFO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trackside_daemon.alerts.rules.rule import Rule
    from trackside_daemon.alerts.rules.vector import Families
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.model.records import Alert
    from trackside_daemon.model.state import State

TICK = "sampler"
"""The source whose batch is the last of a tick, when all others of it are in the state."""

MOST = 64
"""Of one rule so many alerts fire at once; the further ones would say nothing new."""

Named = tuple[tuple[str, str], ...]


class _Standing:
    """One alert of one rule, from when it is so; times in seconds of the clock, but for *began*, in Unix seconds."""

    __slots__ = ("began", "clear_until", "fires", "last", "named", "run", "since", "value")

    def __init__(self, named: Named, now: float, began: float) -> None:
        self.named = named
        self.run = ""
        self.since = self.last = now
        self.began = began
        self.clear_until = 0.0
        self.value = 0.0
        self.fires = False


class _Watched:
    """A rule with what stands of it."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.vector = Vector(rule.when)
        self.standing: dict[Labels, _Standing] = {}
        self.quiet: dict[Labels, float] = {}
        self.adopted: list[Alert] = []


class Rules:
    """A watcher that judges rules over the newest values.

    Args:
        state: Where the values are.
        rules: Judged in this order; the cause of another comes before it.
        clock: Seconds of the monotonic clock, by which the state forgets and durations are measured.
        wall: Unix time in seconds, for what is said.
    """

    def __init__(
        self,
        state: State,
        rules: Iterable[Rule],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._watched = [_Watched(rule) for rule in rules]
        self._clock = clock
        self._wall = wall
        self._names = frozenset(name for one in self._watched for name in one.vector.names()) | {RUN_INFO.name}
        self._firing: dict[tuple[str, Named], int] = {}

    def accept(self, batch: Batch) -> list[Finding]:
        """The alarms of a tick, when the batch is its last."""
        return self.judge(self._clock()) if batch.source == TICK else []

    def judge(self, now: float) -> list[Finding]:
        """What begins and what is over at *now*, in seconds of the clock."""
        found = self._state.named(now, self._names)
        families = {name: Family(metric, values) for name, (metric, values) in found.items()}
        alarms: list[Finding] = []
        for one in self._watched:
            alarms += self._judge(one, now, families)
        return alarms

    def restore(self, alert: Alert) -> None:
        """An alert fired when the daemon before this one ended: it goes on, or is over when its rule knows enough."""
        for one in self._watched:
            if (one.rule.alert, one.rule.severity) == (alert.alert, alert.severity):
                one.adopted.append(alert)

    def _judge(self, one: _Watched, now: float, families: Families) -> Iterator[Finding]:
        rule, standing = one.rule, one.standing
        hits = one.vector.at(now, families)
        if rule.absent:
            hits = {} if hits else {(): 0.0}
        if one.adopted:
            yield from self._take_over(one, now)
        for labels, value in hits.items():
            known = standing.get(labels)
            if known is None:
                known = standing[labels] = _Standing(self._named(one, labels), now, self._wall())
            if rule.because and self._is_caused(rule, known.named):
                continue
            known.value, known.last = value, now
            if not known.fires and now - known.since >= rule.lasting and self._may_fire(one, labels, now):
                yield self._begin(rule, known, families)
        if len(standing) > len(hits) or rule.because:
            yield from self._end(one, now)

    def _take_over(self, one: _Watched, now: float) -> Iterator[Finding]:
        """Adopted alerts stand as soon as it is known what labels the rule has; some time is given to windows to fill."""
        if not one.vector.known and not one.rule.absent:
            return
        names = () if one.rule.absent else one.vector.labels
        for kept in one.adopted:
            known = _Standing(tuple(sorted(kept.labels.items())), now, kept.started)
            known.fires, known.run = True, kept.run
            known.clear_until = now + max(one.rule.when.window, one.rule.lasting)
            one.standing[tuple(kept.labels.get(name, "") for name in names)] = known
            self._count(one.rule, known, 1)
            severity = one.rule.severity
            yield Finding(kept.alert, severity, known.named, self._wall(), kept.summary, kept.description, run=kept.run)
        one.adopted.clear()

    def _may_fire(self, one: _Watched, labels: Labels, now: float) -> bool:
        if one.quiet and one.quiet.get(labels, now) > now:
            return False
        return sum(known.fires for known in one.standing.values()) < MOST

    def _is_caused(self, rule: Rule, named: Named) -> bool:
        return any(
            known.named == named
            for other in self._watched
            if other.rule.alert in rule.because
            for known in other.standing.values()
        )

    def _named(self, one: _Watched, labels: Labels) -> Named:
        if one.rule.absent:
            chosen = one.rule.when.matchers
            return tuple(sorted((matcher.label, matcher.value) for matcher in chosen if matcher.operator == "="))
        pairs = zip(one.vector.labels, labels, strict=True)
        return tuple(sorted((name, value) for name, value in pairs if value))

    def _begin(self, rule: Rule, known: _Standing, families: Families) -> Finding:
        known.fires, known.run = True, _run_id(dict(known.named).get("run", ""), families)
        self._count(rule, known, 1)
        return self._alarm(rule, known)

    def _end(self, one: _Watched, now: float) -> Iterator[Finding]:
        """What was not so at *now* is dropped, or is over."""
        rule = one.rule
        for labels, known in [*one.standing.items()]:
            if known.last == now or now < known.clear_until:
                continue
            if known.fires and now - known.last < rule.keep_firing:
                continue
            del one.standing[labels]
            if not known.fires:
                continue
            if rule.cooldown:
                one.quiet = {quiet: until for quiet, until in one.quiet.items() if until > now}
                one.quiet[labels] = now + rule.cooldown
            if not self._count(rule, known, -1):
                yield self._alarm(rule, known, over=True)

    def _count(self, rule: Rule, known: _Standing, more: int) -> int:
        """How many rules still find the same alert."""
        key = (rule.alert, known.named)
        count = self._firing.pop(key, 0) + more
        if count > 0:
            self._firing[key] = count
        return count

    def _alarm(self, rule: Rule, known: _Standing, *, over: bool = False) -> Finding:
        numbers = {"value": known.value, "threshold": rule.threshold}
        began = datetime.fromtimestamp(known.began, timezone.utc).strftime("%H:%M:%S UTC")
        texts = {**dict(known.named), "since": began, "window": rule.window}
        return Finding(
            rule.alert,
            rule.severity,
            known.named,
            self._wall(),
            fill(rule.summary, numbers, texts),
            fill(rule.description, numbers, texts),
            over=over,
            run=known.run,
            evidence={"value": json_number(known.value), "since": known.began},
        )


def _run_id(run: str, families: Families) -> str:
    """The id of the run with the name; empty for the machine."""
    if not run or RUN_INFO.name not in families:
        return ""
    at, of = RUN_INFO.labels.index("run"), RUN_INFO.labels.index("run_id")
    return next((labels[of] for labels in families[RUN_INFO.name].values if labels[at] == run), "")
