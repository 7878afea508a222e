"""Prometheus' rules for a configuration: what the daemon judges, what it finds, and what it cannot tell of itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.descriptions import DETECTED, PREFIX, RULED
from trackside_daemon.alerts.disabled import DisabledAlerts, run_regex
from trackside_daemon.alerts.families import FIRING
from trackside_daemon.alerts.rules import builtin, custom
from trackside_daemon.alerts.rules.fleet import fleet
from trackside_daemon.alerts.rules.promql_format import laid_out
from trackside_daemon.alerts.rules.query import Matcher
from trackside_daemon.alerts.rules.recording import PLACE, recorded, seldom

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.alerts.rules.recording import Recorded
    from trackside_daemon.alerts.rules.rule import Rule
    from trackside_daemon.alerts.settings import AlertsSection
    from trackside_daemon.model.metric import Metric

SILENCED = "trackside_alert_silenced"
SCRAPES = 4
"""So many scrapes are in a window at least: one may be missed, and a rate needs two. For as long an alert fires on without
its series, as it is while the daemon is restarted."""

HELD = "alert:trackside_alert_firing:held20m"
HOLD = "20m"
"""So long what fired last is held when its series is away, as a daemon that is restarted is; a series of 0 ends it at once.
When its machine is lost, TracksideRunVanished has taken over by then."""

POD = "pod, container, endpoint"
"""Labels of a target that change when a pod is replaced, while the machine stays."""

SELDOM = "5m"

Group = dict[str, Any]

_SINCE = "Since {since}. "
_WHERE = "{{ with $labels.rank }}, rank {{ . }}{{ end }}{{ with $labels.key }}, {{ . }}{{ end }}"
_ABOUT = f"{{{{ with $labels.run }}}}Run {{{{ . }}}}{_WHERE}: {{{{ end }}}}"
_MORE = " `trackside alerts show {alert}` on {{{{ $labels.instance }}}} has the values."


@dataclass(frozen=True)
class Wanted:
    """What differs from one Prometheus to another.

    Attributes:
        scrape: Seconds between two scrapes.
        job: The label ``job`` of the daemons' targets.
        runbooks: The page with a section for each alert; empty for no links.
        places: Further labels of its targets, such as ``rack``: a run goes beyond them.
    """

    scrape: float = 15.0
    job: str = "trackside"
    runbooks: str = "docs/alerts.md"
    places: tuple[str, ...] = ()


def groups(section: AlertsSection, families: Mapping[str, Metric], wanted: Wanted) -> list[Group]:
    """The groups of the file; where alerts are not wanted, only those about daemons and runs.

    Args:
        section: The settings.
        families: Those that a rule of the user's own can name.
        wanted: What Prometheus is like.

    Raises:
        RuleError: One of the user's rules cannot be used.
    """
    places = tuple(dict.fromkeys((*PLACE, *wanted.places)))
    found = {
        "recording": [_record(one) for one in recorded(places)],
        "seldom": [_record(one) for one in seldom(places)],
        "thresholds": _thresholds(section, families, wanted) if section.enabled else [],
        "detectors": _detectors(section, wanted) if section.enabled else [],
        "fleet": _fleet(wanted, places),
    }
    every = {"seldom": {"interval": SELDOM}}
    return [
        {"name": f"trackside.{name}", **every.get(name, {}), "rules": rules} for name, rules in found.items() if rules
    ]


def _record(one: Recorded) -> Group:
    return {"record": one.record, "expr": laid_out(one.expr)}


def _thresholds(section: AlertsSection, families: Mapping[str, Metric], wanted: Wanted) -> list[Group]:
    """The rules that the daemon judges too, in its order: a cause comes before what it causes."""
    off = DisabledAlerts(section.off)
    rules: list[Group] = []
    for rule in builtin.rules(section.thresholds):
        text = f"{_sentence(rule.summary)} {rule.description.removeprefix(_SINCE)}"
        said = replace(rule, summary=RULED[rule.alert].summary, description=text)
        rules += _threshold(said, off, families, wanted, wanted.runbooks)
    for rule in custom.rules(section.rules, families):
        said = replace(rule, description=rule.description.removeprefix(_SINCE) or "A rule of alerts.rules.")
        rules += _threshold(said, off, families, wanted, "")
    return rules


def _threshold(
    rule: Rule, off: DisabledAlerts, families: Mapping[str, Metric], wanted: Wanted, runbooks: str
) -> Iterator[dict[str, Any]]:
    kept = _kept(rule, off, families)
    if kept is None:
        return
    least = SCRAPES * wanted.scrape
    seen = replace(kept, when=kept.when.widened(least), keep_firing=max(kept.keep_firing, least))
    found: dict[str, Any] = seen.prometheus(PREFIX)
    found["expr"] = laid_out(found["expr"])
    yield _linked(found, runbooks, rule.alert)


def _kept(rule: Rule, off: DisabledAlerts, families: Mapping[str, Metric]) -> Rule | None:
    """The rule without the runs for which it is off; None when nothing is left."""
    if rule.absent:
        fixed = {matcher.label: matcher.value for matcher in rule.when.matchers if matcher.operator == "="}
        return None if off.contains(rule.alert, fixed) else rule
    patterns = off.patterns(rule.alert)
    labels = families[rule.when.metric].labels if rule.when.by is None else rule.when.by
    if not patterns:
        return rule
    if "run" not in labels or "" in patterns:
        return None if any(not one or fnmatchcase("", one) for one in patterns) else rule
    but = Matcher("run", "|".join(map(run_regex, patterns)), "!~")
    return replace(rule, when=replace(rule.when, matchers=(*rule.when.matchers, but)))


def _detectors(section: AlertsSection, wanted: Wanted) -> list[Group]:
    """What the daemon finds and says on its page; a run for which it is off is not there."""
    off = DisabledAlerts(section.off)
    rules = [_held()]
    for alert, said in DETECTED.items():
        if "" in off.patterns(alert):
            continue
        text = f"{_ABOUT}{said.description}{_MORE.format(alert=alert)}"
        of_runs = ', run!=""' if alert in RULED else ""
        rule = {
            "alert": PREFIX + alert,
            "expr": f'{HELD}{{alert="{alert}"{of_runs}}}',
            "annotations": {"summary": said.summary, "description": text},
        }
        rules.append(_linked(rule, wanted.runbooks, alert))
    return rules


def _held() -> Group:
    """What fires and is not silenced, once for all rules below it in its group, which Prometheus evaluates in order.

    It is held unless a pod that took the place of the one before says how it is; of a run, wherever that pod is.
    """
    expr = f"""\
max without ({POD}) (
    (
      {FIRING.name} == 1
      unless ignoring ({POD}) {SILENCED} == 1
    )
  or
    (
      last_over_time({FIRING.name}[{HOLD}]) == 1
      unless ignoring ({POD}) {FIRING.name}
      unless ignoring ({POD}, instance, node) {FIRING.name}{{run!=""}}
      unless ignoring ({POD}) last_over_time({SILENCED}[{HOLD}]) == 1
    )
)"""
    return {"record": HELD, "expr": expr}


def _fleet(wanted: Wanted, places: tuple[str, ...]) -> list[Group]:
    rules = []
    for one in fleet(wanted.job, places):
        rule: dict[str, Any] = {"alert": one.alert, "expr": one.expr}
        if one.lasting:
            rule["for"] = one.lasting
        rule["labels"] = {"severity": one.severity}
        rule["annotations"] = {"summary": one.summary, "description": one.description}
        rules.append(_linked(rule, wanted.runbooks, one.alert))
    watchdog = {
        "alert": "Watchdog",
        "expr": "vector(1)",
        "labels": {"severity": "none"},
        "annotations": {
            "summary": "Alerts arrive.",
            "description": "This alert always fires. Route it to a service that notifies you when it stops arriving.",
        },
    }
    return [*rules, _linked(watchdog, wanted.runbooks, "Watchdog")]


def _linked(rule: dict[str, Any], runbooks: str, alert: str) -> dict[str, Any]:
    """With the section of the page that its alert has."""
    if runbooks:
        rule["annotations"] = {**rule["annotations"], "runbook_url": f"{runbooks}#{alert.lower()}"}
    return rule


def _sentence(text: str) -> str:
    """With a capital letter and a period; a name at the beginning stays as it is."""
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
