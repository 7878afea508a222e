"""The shipped Prometheus rules: Prometheus accepts them, each is tested, and the families that they name exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import chain
from typing import TYPE_CHECKING, Any

import processes
import pytest
import yaml
from documents import documented, generator
from processes import DEADLINE, ROOT, command

from trackside_daemon.alerts import process_memory_leaks, slow_collectives
from trackside_daemon.alerts.rules import builtin
from trackside_daemon.alerts.rules.query import TARGETS, Targets
from trackside_daemon.alerts.rules.rule_file import RuleFileOptions, groups
from trackside_daemon.alerts.rules.rule_text import prometheus
from trackside_daemon.alerts.settings import AlertsSection, ThresholdsSection
from trackside_daemon.checkpoints import resumes, tracked
from trackside_daemon.detectors import layers, rank_detectors, run_watch
from trackside_daemon.diagnosis import regression
from trackside_daemon.model.families.catalogue import catalogue
from trackside_daemon.model.records import LIFE_CYCLE
from trackside_daemon.model.troubles import DETECTED, RULED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PLACE = ROOT / "deploy" / "prometheus"
FILE = PLACE / "trackside.rules.yml"
TESTS = sorted(PLACE.glob("*.test.yml"))
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
KEYS = {"alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations"}
"""Keys of a rule that Prometheus 2.42 supports."""

OURS = {"cluster", "namespace", "job", "instance", "node", "pod", "container", "endpoint", "alertname", "le"}
"""Labels that Prometheus itself, or its discovery, adds."""

LATER = {
    "trackside_alert_silenced": ("alert", "severity", "run", "rank", "key", "gpu", "uuid", "subject"),
    "trackside_notifications_failed_total": ("sink",),
    "trackside_notifications_dropped_total": ("sink",),
}
"""Families of silences and sinks."""

FAMILIES = {**LATER, **{metric.name: metric.labels for metric in documented()}}

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=PLACE, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_file_equals_the_output_of_the_command() -> None:
    assert FILE.read_text(encoding="utf-8") == generator().rules(), "run: python docs/generate.py"
    done = processes.run(command("rules"), check=True)
    assert done.stdout == FILE.read_text(encoding="utf-8")


@needs_promtool
def test_prometheus_accepts_the_rules_and_the_configuration() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", FILE.name)
    promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_every_rule_fires_when_it_should_and_not_when_it_should_not() -> None:
    promtool("test", "rules", *(path.name for path in TESTS))


def check(place: Path, rules: str, series: Mapping[str, str], *cases: tuple[str, str, Mapping[str, float]]) -> None:
    """Have promtool check the expected samples of expressions, each at a time, for series with a sample every 15 s."""
    (place / "rules.yml").write_text(rules, encoding="utf-8")
    expected = [
        {
            "expr": expr,
            "eval_time": at,
            "exp_samples": [{"labels": one, "value": value} for one, value in found.items()],
        }
        for expr, at, found in cases
    ]
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": expected,
    }
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "30s", "tests": [test]}
    (place / "test.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    promtool("test", "rules", str(place / "test.yml"))


def written(targets: Targets = TARGETS, **settings: Any) -> str:
    return prometheus(groups(AlertsSection(**settings), catalogue(), RuleFileOptions(targets=targets)), "")


@needs_promtool
def test_a_rolling_update_sends_no_page_but_a_fifth_of_the_daemons_does(tmp_path: Path) -> None:
    series = {}
    for node in range(40):
        begin = 20 + node // 4 * 8  # four at a time are away for two minutes, and come back as another pod
        up = f'up{{job="trackside", instance="n{node}", pod='
        series[f'{up}"old{node}"}}'] = f"1x{begin - 1} stale"
        series[f'{up}"new{node}"}}'] = f"_x{begin} 0x7 1x{131 - begin} " + ("0x60" if node < 9 else "1x60")
    down = 'ALERTS{alertname=~"TracksideSidecars?Down", alertstate="firing"}'
    many = 'count by (alertname) (ALERTS{alertname="TracksideSidecarsDown", alertstate="firing"})'
    check(
        tmp_path,
        written(),
        series,
        (f"count_over_time({down}[35m])", "35m", {}),
        (many, "41m", {'{alertname="TracksideSidecarsDown"}': 1}),
    )


@needs_promtool
def test_each_threshold_keeps_the_labels_of_its_target_in_two_clusters_of_equal_names(tmp_path: Path) -> None:
    document = yaml.safe_load((PLACE / "trackside.test.yml").read_text(encoding="utf-8"))
    (known,) = [one for one in document["tests"] if one["name"] == "thresholds"]
    sites = [f'cluster="{one}", rack="{one}1", namespace="{one}2"' for one in "ab"]
    series = {
        one["series"].replace("{", f"{{{site}, "): one["values"] for one in known["input_series"] for site in sites
    }
    by = "alertname, severity, variant"
    cases = []
    for case in known["promql_expr_test"]:
        if by not in case["expr"]:
            continue
        found = {
            sample["labels"].replace("}", f", {site}}}"): sample["value"]
            for sample in case["exp_samples"]
            for site in sites
        }
        cases.append((case["expr"].replace(by, f"{by}, cluster, rack, namespace"), case["eval_time"], found))
    assert len(cases[-1][2]) > 2 * len(RULED)
    check(tmp_path, written(), series, *cases)


@needs_promtool
def test_two_replicas_without_deduplication_have_an_alert_each(tmp_path: Path) -> None:
    target = 'job="trackside", instance="n1", replica='
    series = {}
    for replica in "01":
        series[f'trackside_host_memory_available_bytes{{{target}"{replica}"}}'] = "1x30"
        series[f'trackside_host_memory_bytes{{{target}"{replica}"}}'] = "500x30"
    fires = 'count by (replica) (ALERTS{alertname="TracksideHostMemoryPressure", alertstate="firing"})'
    both = {f'{{replica="{one}"}}': 1.0 for one in "01"}
    check(tmp_path, written(Targets(("cluster", "replica"))), series, (fires, "5m", both))


def labelled(text: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', text))


def test_every_rule_has_its_expectations() -> None:
    tests = [yaml.safe_load(path.read_text(encoding="utf-8"))["tests"] for path in TESTS]
    cases = [case for test in chain.from_iterable(tests) for case in test["promql_expr_test"]]
    expected = [labelled(sample["labels"]) for case in cases for sample in case["exp_samples"]]
    for rule in ALERTS:
        wanted = {"alertname": rule["alert"], **rule.get("labels", {})}
        fires = [one for one in expected if one.get("alertname") == rule["alert"]]
        assert fires, rule["alert"]
        if rule["alert"].removeprefix("Trackside") in RULED and "severity" in wanted:
            assert wanted in fires, wanted
    for record in RECORDED - {"alert:trackside_alert_firing:held20m"}:
        assert any(record in case["expr"] for case in cases), record


def families_of(expr: str) -> set[str]:
    bare = re.sub(r'"[^"]*"', '""', expr)
    return set(re.findall(r"[a-z_]*:?trackside_[\w:]+", bare))


def known(family: str) -> tuple[str, ...] | None:
    """Return the labels of a family, or of a part of a histogram."""
    return FAMILIES.get(family, FAMILIES.get(re.sub(r"_(sum|count|bucket)$", "", family)))


@pytest.mark.parametrize("rule", RULES, ids=[rule.get("alert", rule.get("record")) for rule in RULES])
def test_every_family_and_label_that_a_rule_names_exists(rule: dict[str, Any]) -> None:
    expr = rule["expr"]
    named = families_of(expr)
    assert {one for one in named if ":" in one} <= RECORDED
    plain = {one for one in named if ":" not in one}
    assert all(known(one) is not None for one in plain), plain
    for family, chosen in re.findall(r"(trackside_\w+)\{([^}]*)\}", expr):
        if ":" not in family and f":{family}" not in expr:
            assert set(re.findall(r"(\w+)[=!]", re.sub(r'"[^"]*"', "", chosen))) <= {*(known(family) or ()), *OURS}
    labels = {label for one in plain for label in known(one) or ()} | OURS
    if not any(":" in one for one in named):
        for listed in re.findall(r"\b(?:on|by|without|ignoring) \(([^)]*)\)", expr):
            assert {label.strip() for label in listed.split(",")} - {""} <= labels, listed


def test_rules_have_only_what_prometheus_2_42_supports() -> None:
    document = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert all(set(group) <= {"name", "interval", "rules"} for group in document["groups"])
    assert all(set(rule) <= KEYS for rule in RULES)


def test_every_alert_of_the_code_has_texts() -> None:
    found = {*rank_detectors.ALERTS, *run_watch.ALERTS, process_memory_leaks.HOST, process_memory_leaks.GPU}
    found |= {*layers.ALERTS, tracked.ALERT, resumes.ALERT, regression.ALERT, slow_collectives.ALERT}
    assert found == set(DETECTED) - {"TestAlert"}
    assert {rule.alert for rule in builtin.rules(ThresholdsSection())} == set(RULED)
    assert {rule["alert"] for rule in ALERTS} > {f"Trackside{name}" for name in {*DETECTED, *RULED} - LIFE_CYCLE}


def test_the_texts_can_be_grouped_and_are_sentences() -> None:
    summaries: dict[str, str] = {}
    for rule in ALERTS:
        reported = rule["annotations"]
        fixed = re.fullmatch(r"\{\{ with printf .*\{\{ else \}\}(.*)\{\{ end \}\}", reported["summary"])
        summary = fixed[1] if fixed else reported["summary"]
        assert summaries.setdefault(rule["alert"], summary) == summary
        assert re.fullmatch(r"[A-Z/][^{}]*\.", summary), summary
        assert re.search(r"\.$", reported["description"]), reported["description"]
        name = rule["alert"]
        named = name.removeprefix("Trackside") if name.removeprefix("Trackside") in {*DETECTED, *RULED} else name
        assert reported["runbook_url"] == f"docs/alerts.md#{named.lower()}"


def test_rejected_series_report_what_keeps_the_values_and_what_to_do() -> None:
    (rule,) = [rule for rule in ALERTS if rule["alert"] == "TracksideSeriesRejected"]
    text = rule["annotations"]["description"]
    assert all(part in text for part in ("/metrics", "The history has all values", "loss/step_17", "raise limits.*"))
