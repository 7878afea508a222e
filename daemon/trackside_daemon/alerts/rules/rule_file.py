"""Prometheus rules for a configuration: thresholds, alerts of detectors, and alerts about daemons and runs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from trackside_daemon.alerts.disabled import DisabledAlerts
from trackside_daemon.alerts.rules import builtin, custom
from trackside_daemon.alerts.rules.fleet import VANISHED, WATCHDOG, fleet
from trackside_daemon.alerts.rules.query import DRAINED, POD, SECOND, TARGETS, Targets
from trackside_daemon.alerts.rules.recording import (
    RecordingRule,
    daily_rules,
    positive_rule,
    quiet_rules,
    recording_rules,
    up_rule,
)
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.model.families import alerts
from trackside_daemon.model.metric import Metric
from trackside_daemon.model.records import LIFE_CYCLE
from trackside_daemon.model.text import matches_wildcards
from trackside_daemon.model.troubles import DETECTED, PREFIX, RULED, TROUBLES

MAX_LINE_LENGTH = 100  # longest line, in characters

_SET = re.compile(r" (or|unless on \([^)]*\)|and on \([^)]*\)|unless|and) ")
_BOUND = re.compile(r"(.*) ([<>] -?[\d.e+-]+)", re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
_ARITHMETIC = re.compile(r" ([/-] on \([^)]*\) group_left \(\)|[/-]) ")
SCRAPES = 4  # least scrapes per window: one may be missed, and a rate needs two
REPLACED = 180.0  # least seconds for which an alert keeps firing without its series, as while a pod is replaced

HELD = f"alert:{alerts.FIRING.name}:held20m"

# Time for which an alert keeps firing while its series is missing, as during a restart; a series of 0 ends it at once.
# If the machine is lost, TracksideRunVanished fires by then.
HOLD = "20m"

# Intervals of the groups whose windows and waits are many times as long; Prometheus evaluates the others at its own.
INTERVALS = {
    "recording": "30s",
    "seldom": "5m",
    "thresholds.gpu_speed": "30s",
    "thresholds.gpu_use": "1m",
    "thresholds.disk": "1m",
    "thresholds.infiniband": "1m",
    "fleet": "1m",
}

Group = dict[str, Any]

_RUN = "{{ $labels.run }}"
_SINCE = "Since {since}. "
_WHERE = "{{ with $labels.rank }}, rank {{ . }}{{ end }}{{ with $labels.key }}, {{ . }}{{ end }}"
_ABOUT = f"{{{{ with $labels.run }}}}Run {{{{ . }}}}{_WHERE}: {{{{ end }}}}"
_MORE = " `trackside alerts show {alert}` on {{{{ $labels.instance }}}} has the values."


def format_promql(expr: str, indent: str = "") -> str:
    """Return the expression, over several lines if it is too long for one."""
    if "\n" in expr or len(indent) + len(expr) <= MAX_LINE_LENGTH:
        return indent + expr
    # Operators with the lowest precedence are split first.
    if (lines := _operands(expr, _SET, indent)) is not None:
        return lines
    match = _BOUND.fullmatch(expr)
    left, bound = (match[1], f"\n{indent}{match[2]}") if match else (expr, "")
    if (lines := _operands(left, _ARITHMETIC, indent)) is not None:
        return lines + bound
    if (opened := _enclosed(expr)) is not None:
        before, inner, after = opened
        return f"{indent}{before}(\n{format_promql(inner, f'{indent}  ')}\n{indent}){after}"
    return indent + expr


def _operands(expr: str, operators: re.Pattern[str], indent: str) -> str | None:
    """Return each operand and each operator on a separate line; None if there is no operator."""
    parts = [*_split(expr, operators)]
    if len(parts) == 1:
        return None
    return "\n".join(
        format_promql(part, f"{indent}  ") if at % 2 == 0 else indent + part for at, part in enumerate(parts)
    )


def _split(expr: str, operators: re.Pattern[str]) -> Iterator[str]:
    """Yield operands and, between them, operators; skip operators within parentheses and quotes."""
    begun = at = 0
    while at < len(expr):
        if expr[at] in '("{':
            at = _end(expr, at)
        elif (match := operators.match(expr, at)) is not None:
            yield expr[begun:at]
            yield match[1]
            begun = at = match.end()
        else:
            at += 1
    yield expr[begun:]


def _end(expr: str, at: int) -> int:
    """Return the index after the parenthesis, brace or quote that opens at *at*."""
    if expr[at] == '"':
        match = _QUOTED.match(expr, at)
        return match.end() if match else len(expr)
    close = {"(": ")", "{": "}"}[expr[at]]
    at += 1
    while at < len(expr) and expr[at] != close:
        at = _end(expr, at) if expr[at] in '("{' else at + 1
    return at + 1


def _enclosed(expr: str) -> tuple[str, str, str] | None:
    """Return the texts before, within and after the last of the outermost parentheses; None if there are none."""
    at, last = 0, None
    while at < len(expr):
        if expr[at] in '("{':
            end = _end(expr, at)
            last = (at, end) if expr[at] == "(" else last
            at = end
        else:
            at += 1
    return None if last is None else (expr[: last[0]], expr[last[0] + 1 : last[1] - 1], expr[last[1] :])


@dataclass(frozen=True)
class RuleFileOptions:
    """Facts about the Prometheus that reads the rules."""

    scrape: float = 15.0  # scrape interval, in seconds
    job: str = "trackside"  # value of the label ``job`` of the daemons' targets
    runbooks: str = "docs/alerts.md"  # page with a section for each alert; empty for no links
    targets: Targets = TARGETS  # labels of its targets


def groups(section: AlertsSection, families: Mapping[str, Metric], options: RuleFileOptions) -> list[Group]:
    """Return the groups of the file; if alerts are disabled, only those about daemons and runs.

    Args:
        section: The settings.
        families: Families that a rule of the configuration can name.
        options: Facts about Prometheus.

    Raises:
        RuleError: A rule of the configuration is invalid.
    """
    by_group = {
        "recording": [
            _record(rule) for rule in (*quiet_rules(options.job, options.targets), *recording_rules(options.targets))
        ],
        "seldom": [_record(rule) for rule in daily_rules(options.targets)],
        # Prometheus evaluates groups in parallel, and the rules of one after the other.
        **(_thresholds(section, families, options) if section.enabled else {}),
        "detectors": _detectors(section, families, options) if section.enabled else [],
        "fleet": _fleet(section, options),
    }
    for rule in chain.from_iterable(by_group.values()):
        if "alert" in rule and "cluster" not in options.targets.clusters and rule["alert"] != WATCHDOG:
            # Alertmanager groups and inhibits by this label.
            rule["labels"] = {**rule.get("labels", {}), "cluster": f"{{{{ $labels.{options.targets.clusters[0]} }}}}"}
    return [
        {"name": f"trackside.{name}", **_interval(name), "rules": rules} for name, rules in by_group.items() if rules
    ]


def _interval(group: str) -> dict[str, str]:
    return {"interval": INTERVALS[group]} if group in INTERVALS else {}


def _record(rule: RecordingRule) -> Group:
    return {"record": rule.record, "expr": format_promql(rule.expr)}


def _thresholds(
    section: AlertsSection, families: Mapping[str, Metric], options: RuleFileOptions
) -> dict[str, list[Group]]:
    """Return the rules that the daemon evaluates too, by group, in its order: an inhibiting rule comes first."""
    disabled = DisabledAlerts(section.off)
    groups: dict[str, list[Group]] = {}
    for subsystem, every in builtin.subsystems(section.thresholds).items():
        rules = [rule for rule in every if not rule.needs_daemon]
        described = (
            replace(
                rule,
                summary=RULED[rule.alert].summary,
                description=f"{_sentence(rule.summary)} {rule.description.removeprefix(_SINCE)}",
            )
            for rule in rules
        )
        up = [_record(up_rule(options.job))] if not groups else []
        counted = {rule.query.metric.name: rule.query.metric for rule in rules if rule.query.fresh}
        groups[subsystem] = [
            *up,
            *(_record(positive_rule(metric, options.targets)) for metric in counted.values()),
            *(one for rule in described for one in _threshold(rule, disabled, options, options.runbooks)),
        ]
    own = (rule for rule in custom.rules(section.rules, families) if not _of_daemon(rule))
    described = (
        replace(rule, description=rule.description.removeprefix(_SINCE) or "A rule of alerts.rules.") for rule in own
    )
    groups["own"] = [one for rule in described for one in _threshold(rule, disabled, options, "")]
    return {f"thresholds.{name}": rules for name, rules in groups.items()}


def _threshold(
    rule: Rule, disabled: DisabledAlerts, options: RuleFileOptions, runbooks: str
) -> Iterator[dict[str, Any]]:
    enabled = _enabled(rule, disabled)
    if enabled is None:
        return
    # The daemon has a value per tick, Prometheus only one per scrape.
    least = SCRAPES * options.scrape
    adapted = replace(
        enabled, query=enabled.query.widened(least), keep_firing=max(enabled.keep_firing, least, REPLACED)
    )
    written: dict[str, Any] = adapted.prometheus(PREFIX, options.targets)
    written["expr"] = format_promql(written["expr"])
    written["annotations"]["description"] = f"{options.targets.machine()}: {written['annotations']['description']}"
    yield _linked(written, runbooks, rule.alert)


def _of_daemon(rule: Rule) -> bool:
    """Return whether Prometheus has a rule of the configuration from the daemon: with its owner, if it is about a run."""
    return rule.needs_daemon or ("run" in rule.query.metric.labels and not rule.absent)


def _enabled(rule: Rule, disabled: DisabledAlerts) -> Rule | None:
    """Return the rule without the runs for which it is off; None if it is off for all."""
    if rule.absent:
        fixed = {matcher.label: matcher.value for matcher in rule.query.matchers if matcher.operator == "="}
        return None if disabled.contains(rule.alert, fixed) else rule
    patterns = disabled.patterns(rule.alert)
    labels = rule.query.metric.labels if rule.query.by is None else rule.query.by
    if not patterns:
        return rule
    # Without a label run the name of the run is empty, which a pattern such as * matches.
    if "run" not in labels or "" in patterns:
        return None if any(not pattern or matches_wildcards("", pattern) for pattern in patterns) else rule
    return replace(rule, query=replace(rule.query, matchers=(*rule.query.matchers, *disabled.other_runs(rule.alert))))


def _detectors(section: AlertsSection, families: Mapping[str, Metric], options: RuleFileOptions) -> list[Group]:
    """Return the rules for the alerts that the daemon exports; runs for which an alert is off have no series.

    They include rules of the configuration that Prometheus cannot evaluate.
    """
    disabled = DisabledAlerts(section.off)
    rules = [_held_rule(options.targets), *_unseen_events(section, disabled, options)]
    ruled = builtin.rules(section.thresholds)
    evaluated = {rule.alert for rule in ruled if not rule.needs_daemon}
    for alert, fixed in TROUBLES.items():
        found = alert in DETECTED or any(rule.alert == alert and rule.needs_daemon for rule in ruled)
        if not found or alert in LIFE_CYCLE or "" in disabled.patterns(alert):
            continue
        # Rules that Prometheus evaluates cover the alerts of the machine, such as OomKilled.
        of_runs = ', run!=""' if alert in evaluated else ""
        rule = _exported(alert, of_runs, fixed.summary, f"{fixed.meaning} {fixed.advice(run=_RUN)}", options.targets)
        rules.append(_linked(rule, options.runbooks, alert))
    for custom_rule in custom.rules(section.rules, families):
        if _of_daemon(custom_rule) and "" not in disabled.patterns(custom_rule.alert):
            about = "The daemon evaluates this rule of alerts.rules: it knows the run's own past and its owner."
            rules.append(_exported(custom_rule.alert, "", f"{custom_rule.alert} fires.", about, options.targets))
    return rules


def _unseen_events(section: AlertsSection, disabled: DisabledAlerts, options: RuleFileOptions) -> Iterator[Group]:
    """Yield the rules for events that the daemon saw and that Prometheus, which could not scrape it then, did not."""
    rules = (rule for rule in builtin.rules(section.thresholds) if not rule.needs_daemon)
    events = {rule.alert for rule in rules if rule.query.function == "change"}
    for alert, fixed in RULED.items():
        if alert not in events or alert in DETECTED or "" in disabled.patterns(alert):
            continue
        texts = (fixed.summary, f"{fixed.meaning} {fixed.advice(run=_RUN)}")
        rule = _exported(alert, "", *texts, options.targets)
        machine = options.targets.of_site("job", "instance")
        seen = f'ALERTS{{alertname="{PREFIX}{alert}", variant!="daemon", alertstate="firing"}}'
        rule["expr"] += f"\nunless on ({machine}, run, gpu, severity)\n  {seen}\nunless on ({machine})\n  {DRAINED}"
        yield _linked({**rule, "for": "1m", "labels": {"variant": "daemon"}}, options.runbooks, alert)


def _exported(alert: str, matchers: str, summary: str, meaning: str, targets: Targets) -> Group:
    """Return the rule for an alert that the daemon exports; the texts are for the time without its series."""
    meaning = _LINK.sub(r"\1", meaning)  # a link between our pages leads nowhere in a message
    more, own = _MORE.format(alert=alert), partial(_own_text, targets, alert)
    return {
        "alert": PREFIX + alert,
        "expr": f'{HELD}{{alert="{alert}"{matchers}}}',
        "annotations": {
            "summary": own(_label("summary"), summary),
            "description": own(_OWN, f"{_ABOUT}{summary} {meaning}") + more,
            # Prometheus' own begin of an alert is its first scrape of the series.
            "since": own(_label("since"), ""),
            "dashboard_url": own(_label("dashboard_url"), ""),
            alerts.CORRELATION: own(_label(alerts.CORRELATION), ""),
        },
    }


def _label(name: str) -> str:
    return f'{{{{ . | first | label "{name}" }}}}'


_OWN = f'{_label("description")} On {_label("host")}{{{{ with . | first | label "run_id" }}}}, run id {{{{ . }}}}{{{{ end }}}}.'


def _own_text(targets: Targets, alert: str, text: str, otherwise: str) -> str:
    """Return a template of the daemon's own *text*; *otherwise* while the series is missing, as during its restart."""
    labels = (*targets.sites, "job", "instance", "run", "rank", "key", "gpu", "user", "subject")
    series = f'{alerts.TEXT.name}{{alert="{alert}",{",".join(f"{label}=%q" for label in labels)}}}'
    values = " ".join(f"$labels.{label}" for label in labels)
    return f"{{{{ with printf `{series}` {values} | query }}}}{text}{{{{ else }}}}{otherwise}{{{{ end }}}}"


def _held_rule(targets: Targets) -> Group:
    """Return the recording rule of the alerts that fire and are not silenced.

    Prometheus evaluates a group in order, so all rules below it in its group use its result. An alert is held while its
    series is missing, unless the pod that replaced the former one exports it; for a run, wherever that pod is.
    """
    expr = f"""\
max without ({POD}) (
    (
      {alerts.FIRING.name} == 1
      unless ignoring ({POD}) {alerts.SILENCED.name} == 1
      unless on ({targets.of_site("job", "instance", "run")}) {SECOND}
    )
  or
    (
      last_over_time({alerts.FIRING.name}[{HOLD}]) == 1
      unless ignoring ({POD}) {alerts.FIRING.name}
      unless ignoring ({", ".join(dict.fromkeys((*POD.split(", "), *targets.places)))}) {alerts.FIRING.name}{{run!=""}}
      unless ignoring ({POD}) last_over_time({alerts.SILENCED.name}[{HOLD}]) == 1
    )
)"""
    return {"record": HELD, "expr": expr}


def _fleet(section: AlertsSection, options: RuleFileOptions) -> list[Group]:
    rules, disabled = [], DisabledAlerts(section.off)
    for fleet_rule in fleet(options.job, options.targets, disabled):
        rule: dict[str, Any] = {"alert": fleet_rule.alert, "expr": fleet_rule.expr}
        if fleet_rule.lasting:
            rule["for"] = fleet_rule.lasting
        trouble = TROUBLES[fleet_rule.alert]
        # Of the conditions of alerts.page, this alone is known without the daemon, which is gone.
        pages = fleet_rule.alert == VANISHED and "all" in section.page
        rule["labels"] = {"severity": "critical" if pages else trouble.severity}
        if fleet_rule.variant:
            rule["labels"]["variant"] = fleet_rule.variant
        description = f"{fleet_rule.fact} {trouble.advice(run=_RUN)}"
        rule["annotations"] = {"summary": trouble.summary, "description": description}
        rules.append(_linked(rule, options.runbooks, fleet_rule.alert))
    always = TROUBLES[WATCHDOG]
    watchdog = {
        "alert": WATCHDOG,
        "expr": "vector(1)",
        "labels": {"severity": always.severity},
        "annotations": {
            "summary": always.summary,
            "description": f"{always.meaning} {always.advice()}",
        },
    }
    rules.append(_linked(watchdog, options.runbooks, WATCHDOG))
    return [rule for rule in rules if not disabled.contains(rule["alert"], {})]


def _linked(rule: dict[str, Any], runbooks: str, alert: str) -> dict[str, Any]:
    """Add the link to the alert's section of the runbooks."""
    if runbooks:
        rule["annotations"] = {**rule["annotations"], "runbook_url": f"{runbooks}#{alert.lower()}"}
    return rule


def _sentence(text: str) -> str:
    """Return the text with a capital letter and a period."""
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
