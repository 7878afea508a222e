"""Rules of the configuration, converted to the form of the built-in ones."""

import re
from collections.abc import Iterable, Mapping

from trackside_daemon.alerts.rules.fleet import NAMES
from trackside_daemon.alerts.rules.query import Function, Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.alerts.rules.template import check
from trackside_daemon.alerts.settings import RuleSection
from trackside_daemon.config.near import near_name
from trackside_daemon.model.families.training import ENDED_AT, KNOWN, RANK, RANK_STATE, STEPS, VALUE
from trackside_daemon.model.metric import ForeignMetric, Metric
from trackside_daemon.model.setting_types import pattern
from trackside_daemon.model.troubles import DETECTED, PREFIX, RULED

KEY = "key:"
FAMILY = "family:"  # before the name of another program's family, from a text file or over OTLP
LIKE = "~"
# Names of the alerts of trackside, which a rule of the configuration must not have.
RESERVED_NAMES = {*DETECTED, *RULED, *(name.removeprefix(PREFIX) for name in NAMES)}

# Selects the live ranks: the series of an ended rank stay constant for a while, and must raise no alert.
LIVE_RANKS = Query(RANK_STATE, (Matcher("state", "starting|running|stalled", "=~"),), above=0.0)

# The regular expressions of Python that Prometheus (RE2) reads too, with the same meaning.
_PORTABLE = re.compile(
    r"""(?: \\(?: [abfnrtvdDsSwWBA] | x[0-9a-fA-F]{2} | [^0-9A-Za-z_] ) | [^][\\(*+?{]
    | \[ \^? (?: \\(?: [fnrtvdDsSwW] | [^0-9A-Za-z_] ) | [^][\\] )+ \]
    | \( (?: (?!\?) | \?: | \?P<[A-Za-z_][A-Za-z0-9_]*> | \?[ims]+[:)] )
    | (?: [*+?] | \{ [0-9]{1,3} (?: , (?: [0-9]{1,3} )? )? \} ) \?? (?! [*+?{] )
    )*""",
    re.VERBOSE,
)

# Labels that a default summary omits: it has the number of the GPU, and the key is its subject.
OMITTED_LABELS = ("uuid", "key")


class RuleError(ValueError):
    """A rule is invalid; the message names the rule and the remedy."""


def rules(sections: Iterable[RuleSection], families: Mapping[str, Metric]) -> list[Rule]:
    """Return the rules of the configuration.

    Args:
        sections: The settings.
        families: All families, by name.

    Raises:
        RuleError: A rule is invalid; the text is one line about the first error.
    """
    converted: list[Rule] = []
    for section in sections:
        if any(rule.alert == section.alert for rule in converted):
            raise RuleError(f"alerts.rules: rule {section.alert}: another rule has this name; choose another name")
        converted.append(_rule(section, families))
    return converted


def _rule(section: RuleSection, families: Mapping[str, Metric]) -> Rule:
    try:
        _check_name(section.alert)
        query, labels = _query(section, families)
        summary = section.summary or _default_summary(section, labels)
        known = None if section.metric.startswith(FAMILY) else labels
        for text in (summary, section.description):
            check(text, known)
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
        section.for_steps,
        section.absent,
    )


def _check_name(alert: str) -> None:
    if alert.removeprefix(PREFIX) in RESERVED_NAMES:
        raise ValueError("trackside has an alert of this name; choose another name")


def _query(section: RuleSection, families: Mapping[str, Metric]) -> tuple[Query, tuple[str, ...]]:
    """Return the query of a rule, and the labels of its series."""
    metric, matchers = _selection(section.metric, section.labels, families)
    windows: dict[Function, float | None] = {"rate": section.rate, "change": section.change, "mean": section.mean}
    function: Function = next((name for name, window in windows.items() if window), "value")
    for key, given in (("relative-to", section.relative_to), ("for-steps", section.for_steps)):
        if given and not set(RANK) <= set(metric.labels):
            raise ValueError(
                f"{key}: {metric.name} is of no rank of a run; it has {', '.join(metric.labels) or 'no labels'}"
            )
    over: Query | None = None
    on: tuple[str, ...] = RANK if set(RANK) <= set(metric.labels) else ()
    if section.over is not None:
        if FAMILY in (section.metric[: len(FAMILY)], section.over.metric[: len(FAMILY)]):
            raise ValueError(f"over: the labels of {FAMILY}NAME are not known; record the ratio in Prometheus")
        other, other_matchers = _selection(section.over.metric, section.over.labels, families)
        # A label with one fixed value needs no join.
        fixed = {matcher.label for matcher in other_matchers if matcher.operator == "="}
        over = Query(other, other_matchers)
        on = tuple(name for name in metric.labels if name in other.labels and name not in fixed)
        if ambiguous := [name for name in other.labels if name not in (*on, *fixed)]:
            raise ValueError(f"over: {other.name} also has {', '.join(ambiguous)}; choose the value under over.labels")
    # A rule about the state or the end of a rank must see ended ranks too.
    of_ranks = on == RANK and metric not in {RANK_STATE, ENDED_AT} and not section.absent
    query = Query(
        metric,
        matchers,
        function,
        windows.get(function) or 0.0,
        over=over,
        past=section.relative_to,
        key=_baseline_key(metric, matchers, function) if section.relative_to == "baseline" else "",
        on=on,
        above=section.above,
        below=section.below,
        only=(LIVE_RANKS,) if of_ranks else (),
    )
    labels = metric.labels
    if section.absent:
        labels = tuple(matcher.label for matcher in matchers if matcher.operator == "=")
    return query, labels


def _baseline_key(metric: Metric, matchers: Iterable[Matcher], function: Function) -> str:
    """Return what a rule reads of the baseline."""
    if metric is STEPS and function == "rate":
        return STEPS.name
    keys = [one.value for one in matchers if metric is VALUE and (one.label, one.operator) == ("key", "=")]
    keys += [key for key, known in KNOWN.items() if known is metric]
    if not keys or function == "rate":
        raise ValueError(f"relative-to: a baseline has pushed keys, as {KEY}loss, and the rate of {STEPS.name}")
    return keys[0]


def _selection(
    name: str, labels: Mapping[str, str], families: Mapping[str, Metric]
) -> tuple[Metric, tuple[Matcher, ...]]:
    """Return a family, or that of a pushed key, and the matchers of its series."""
    matchers = []
    if name.startswith(KEY):
        key = name.removeprefix(KEY)
        metric = KNOWN.get(key, VALUE)
        matchers += [Matcher("key", key)] if metric is VALUE else []
    elif name.startswith(FAMILY):
        name = name.removeprefix(FAMILY)
        metric = ForeignMetric(name, "counter" if name.endswith("_total") else "gauge", "", tuple(labels))
    elif name in families:
        metric = families[name]
    else:
        raise ValueError(
            f"there is no family {name}{near_name(name, families, f'a pushed key is written {KEY}{name}')}"
        )
    # Rules compare a single number per series.
    if metric.kind == "histogram":
        raise ValueError(f"{name} is a histogram, which has no single value")
    return metric, (*matchers, *(_matcher(label, value, metric) for label, value in labels.items()))


def _matcher(label: str, value: str, metric: Metric) -> Matcher:
    if label not in metric.labels:
        raise ValueError(f"{metric.name} has no label {label}; it has {', '.join(metric.labels) or 'none'}")
    if not value.startswith(LIKE):
        return Matcher(label, value)
    try:
        expression = pattern(value.removeprefix(LIKE))
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    if not _PORTABLE.fullmatch(expression):
        raise ValueError(
            f"{label}: {expression!r} has a form that Prometheus does not read, such as (?=…), \\1 or an open ["
        )
    return Matcher(label, expression, "=~")


def _default_summary(section: RuleSection, labels: Iterable[str]) -> str:
    """Return the summary of a rule that has none, which names the series by its *labels*."""
    subject = _plain(section.metric)
    if section.absent:
        fixed = [f"{name} {_plain(value)}" for name, value in section.labels.items()]
        return f"there is no {subject}" + (f" of {', '.join(fixed)}" if fixed else "")
    named = [f"{name} {{{name}}}" for name in labels if name not in OMITTED_LABELS]
    series = f" of {', '.join(named)}" if named else ""
    functions = (("rate", section.rate), ("change", section.change), ("mean", section.mean))
    function = "".join(f"the {name} of " for name, window in functions if window)
    over = f" over {_plain(section.over.metric)}" if section.over else ""
    side = "above" if section.above is not None else "below"
    unit = f" times its {section.relative_to}" if section.relative_to else " a second" if section.rate else ""
    return f"{function}{subject}{over}{series} is {{value}}{unit}, {side} {{threshold}}"


def _plain(text: str) -> str:
    """Return the text without the prefix of a key or a family, and without braces, which mark fields in a template."""
    return text.removeprefix(KEY).removeprefix(FAMILY).replace("{", "").replace("}", "")
