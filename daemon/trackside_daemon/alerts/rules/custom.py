"""The user's own rules: what the configuration says becomes a rule like those that are built in."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from trackside_daemon.alerts.descriptions import DETECTED, PREFIX, RULED
from trackside_daemon.alerts.rules.fleet import NAMES
from trackside_daemon.alerts.rules.query import How, Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.alerts.rules.template import check
from trackside_daemon.training.families import ENDED_AT, KNOWN, RANK, RANK_STATE, VALUE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trackside_daemon.alerts.settings import RuleSection
    from trackside_daemon.model.metric import Metric

KEY = "key:"
LIKE = "~"
TAKEN = {*DETECTED, *RULED, *(name.removeprefix(PREFIX) for name in NAMES)}
"""What routes and people know as something else."""

LIVES = Query(RANK_STATE.name, (Matcher("state", "starting|running|stalled", "=~"),), above=0.0)
"""The ranks that live: what the page keeps of one that has ended stands still, and is no trouble of it."""

UNSAID = ("uuid", "key")
"""Labels that a summary does without: the GPU's number is there, and the key is what it is about."""


class RuleError(ValueError):
    """A rule cannot be used; the message names the rule, and says what to write instead."""


def rules(sections: Iterable[RuleSection], families: Mapping[str, Metric]) -> list[Rule]:
    """The rules of the configuration.

    Args:
        sections: As they were read.
        families: Those that there are, by name.

    Raises:
        RuleError: In one line, the first thing that is wrong.
    """
    found: list[Rule] = []
    for section in sections:
        if any(one.alert == section.alert for one in found):
            raise RuleError(f"alerts.rules: rule {section.alert}: there is another of this name; choose another name")
        found.append(_rule(section, families))
    return found


def _rule(section: RuleSection, families: Mapping[str, Metric]) -> Rule:
    try:
        _check_name(section.alert)
        query, labels = _query(section, families)
        summary = section.summary or _said(section, labels)
        for text in (summary, section.description):
            check(text, labels)
    except ValueError as error:
        raise RuleError(f"alerts.rules: rule {section.alert}: {error}") from None
    return Rule(
        section.alert,
        section.severity,
        query,
        summary,
        section.description,
        section.lasting,
        section.keep_firing_for,
        section.cooldown,
        section.absent,
    )


def _check_name(alert: str) -> None:
    if alert.removeprefix(PREFIX) in TAKEN:
        raise ValueError("trackside has an alert of this name; give yours another")


def _query(section: RuleSection, families: Mapping[str, Metric]) -> tuple[Query, tuple[str, ...]]:
    """What is looked at, and the labels of what is found."""
    metric, matchers = _chosen(section.metric, section.labels, families)
    how: How = "rate" if section.rate else "change" if section.change else "value"
    over: Query | None = None
    on: tuple[str, ...] = RANK if set(RANK) <= set(metric.labels) else ()
    if section.over is not None:
        other, chosen = _chosen(section.over.metric, section.over.labels, families)
        fixed = {matcher.label for matcher in chosen if matcher.operator == "="}
        over = Query(other.name, chosen)
        on = tuple(name for name in metric.labels if name in other.labels and name not in fixed)
        if left := [name for name in other.labels if name not in (*on, *fixed)]:
            raise ValueError(f"over: {other.name} has {', '.join(left)} too; say which one under over.labels")
    lives = on == RANK and metric not in {RANK_STATE, ENDED_AT} and not section.absent
    query = Query(
        metric.name,
        matchers,
        how,
        section.rate or section.change or 0.0,
        over=over,
        on=on,
        above=section.above,
        below=section.below,
        only=(LIVES,) if lives else (),
    )
    labels = metric.labels
    if section.absent:
        labels = tuple(matcher.label for matcher in matchers if matcher.operator == "=")
    return query, labels


def _chosen(name: str, labels: Mapping[str, str], families: Mapping[str, Metric]) -> tuple[Metric, tuple[Matcher, ...]]:
    """The family, or that of a pushed key, and what chooses its series."""
    matchers = []
    if name.startswith(KEY):
        key = name.removeprefix(KEY)
        metric = KNOWN.get(key, VALUE)
        matchers += [Matcher("key", key)] if metric is VALUE else []
    elif name in families:
        metric = families[name]
    else:
        near = difflib.get_close_matches(name, families, 1)
        hint = f"did you mean {near[0]}?" if near else f"a key that is pushed is written {KEY}{name}"
        raise ValueError(f"no family {name}; {hint}")
    if metric.kind == "histogram":
        raise ValueError(f"{name} is a histogram, which has no one value")
    return metric, (*matchers, *(_matcher(label, value, metric) for label, value in labels.items()))


def _matcher(label: str, value: str, metric: Metric) -> Matcher:
    if label not in metric.labels:
        raise ValueError(f"{metric.name} has no label {label}; it has {', '.join(metric.labels) or 'none'}")
    if not value.startswith(LIKE):
        return Matcher(label, value)
    pattern = value.removeprefix(LIKE)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{label}: {pattern!r} is not a regular expression: {error}") from None
    return Matcher(label, pattern, "=~")


def _said(section: RuleSection, labels: Iterable[str]) -> str:
    """What is said where the user does not say: it names the series by its *labels*."""
    what = _plain(section.metric)
    if section.absent:
        chosen = [f"{name} {_plain(value)}" for name, value in section.labels.items()]
        return f"there is no {what}" + (f" of {', '.join(chosen)}" if chosen else "")
    named = [f"{name} {{{name}}}" for name in labels if name not in UNSAID]
    of = f" of {', '.join(named)}" if named else ""
    way = "the rate of " if section.rate else "the change of " if section.change else ""
    over = f" over {_plain(section.over.metric)}" if section.over else ""
    side = "above" if section.above is not None else "below"
    each = " a second" if section.rate else ""
    return f"{way}{what}{over}{of} is {{value}}{each}, {side} {{threshold}}"


def _plain(text: str) -> str:
    """Without what means something in a template."""
    return text.removeprefix(KEY).replace("{", "").replace("}", "")
