"""The rules of grafana/dashboard-linter: the dashboards pass, and each rule finds its mistake."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from grafana.boards import DASHBOARDS, committed, panels
from grafana.linter import RULES, excluded, findings
from grafana.samples import GOOD, sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from grafana.linter import Finding

LINT = yaml.safe_load((DASHBOARDS / ".lint").read_text(encoding="utf-8"))
BOARDS = committed()


@cache
def findings_of(uid: str) -> list[Finding]:
    return findings(BOARDS[uid])


@pytest.mark.parametrize("uid", BOARDS)
def test_a_dashboard_keeps_the_rules(uid: str) -> None:
    board = BOARDS[uid]
    assert [one for one in findings_of(uid) if not excluded(one, board["title"], LINT)] == []


def test_each_exclusion_has_a_reason_and_excludes_something() -> None:
    assert set(LINT) == {"exclusions"}
    found = [(one, board["title"]) for uid, board in BOARDS.items() for one in findings_of(uid)]
    for rule, what in LINT["exclusions"].items():
        assert rule in RULES
        assert what["reason"].endswith(".")
        for entry in what.get("entries", [{}]):
            only = {"exclusions": {rule: {"entries": [entry]}}}
            assert any(excluded(one, title, only) for one, title in found), (rule, entry)


def _variable(which: str, /, **changes: Any) -> Callable[[Any], None]:
    def change(board: Any) -> None:
        next(one for one in board["templating"]["list"] if one["name"] == which).update(changes)

    return change


def _panel(**changes: Any) -> Callable[[Any], None]:
    return lambda board: panels(board)[0].update(changes)


def _expr(text: str) -> Callable[[Any], None]:
    return lambda board: panels(board)[0]["targets"][0].update(expr=text)


JOB, INSTANCE = 'job=~"$job"', 'instance=~"$instance"'
BREAKING: list[tuple[str, Callable[[Any], None]]] = [
    ("template-datasource-rule", _variable("datasource", label="Source")),
    ("template-datasource-rule", _variable("datasource", name="prometheus")),
    ("template-datasource-rule", _variable("datasource", query="loki")),
    ("template-job-rule", _variable("job", multi=False)),
    ("template-job-rule", _variable("job", allValue=".*")),
    ("template-job-rule", _variable("job", datasource={"type": "prometheus", "uid": "mine"})),
    ("template-instance-rule", _variable("instance", name="host")),
    ("template-label-promql-rule", _variable("job", query="labels(up, job)")),
    ("template-label-promql-rule", _variable("job", query="label_values(up{, job)")),
    ("template-on-time-change-reload-rule", _variable("job", refresh=1)),
    ("panel-datasource-rule", _panel(datasource={"type": "prometheus", "uid": "mine"})),
    ("panel-title-description-rule", _panel(description="")),
    ("panel-units-rule", _panel(fieldConfig={"defaults": {"unit": "percents"}})),
    ("panel-units-rule", _panel(fieldConfig={"defaults": {}})),
    (
        "panel-units-rule",
        _panel(
            fieldConfig={
                "defaults": {"unit": "s"},
                "overrides": [{"matcher": {}, "properties": [{"id": "unit", "value": "seconds"}]}],
            }
        ),
    ),
    ("panel-no-targets-rule", _panel(targets=[])),
    ("target-promql-rule", _expr(f"sum(rate(a_total{{{JOB}, {INSTANCE}}}[$__rate_interval])")),
    ("target-rate-interval-rule", _expr(f"rate(a_total{{{JOB}, {INSTANCE}}}[5m])")),
    ("target-rate-interval-rule", _expr(f"irate(a_total{{{JOB}, {INSTANCE}}}[$__interval])")),
    ("target-job-rule", _expr(f"a{{{INSTANCE}}}")),
    ("target-job-rule", _expr(f'a{{job="$job", {INSTANCE}}}')),
    ("target-instance-rule", _expr(f"a{{{JOB}, {INSTANCE}}} / b{{{JOB}}}")),
    ("target-counter-agg-rule", _expr(f"a_total{{{JOB}, {INSTANCE}}}")),
    ("target-counter-agg-rule", _expr(f"max_over_time(a_total{{{JOB}, {INSTANCE}}}[$__range])")),
    ("uneditable-dashboard", lambda board: board.update(editable=True)),
]


def test_the_sample_keeps_the_rules() -> None:
    assert findings(GOOD) == []


def test_each_rule_is_broken_once() -> None:
    assert {rule for rule, _ in BREAKING} == set(RULES)


@pytest.mark.parametrize(("rule", "change"), BREAKING, ids=[f"{at}-{rule}" for at, (rule, _) in enumerate(BREAKING)])
def test_what_breaks_a_rule_is_found_by_it_alone(rule: str, change: Callable[[Any], None]) -> None:
    board = sample()
    change(board)
    assert {one.rule for one in findings(board)} == {rule}


def test_an_exclusion_is_for_what_it_names() -> None:
    board = sample()
    _expr("a_total")(board)
    title, panel = board["title"], panels(board)[0]["title"]
    [found] = [one for one in findings(board) if one.rule == "target-job-rule"]
    for entry, meant in (
        ({"dashboard": title, "panel": panel, "targetIdx": 0}, True),
        ({"panel": panel}, True),
        ({"panel": "Another"}, False),
        ({"dashboard": "Another"}, False),
        ({"panel": panel, "targetIdx": 1}, False),
    ):
        lint = {"exclusions": {"target-job-rule": {"reason": "So.", "entries": [entry]}}}
        assert excluded(found, title, lint) is meant
    assert excluded(found, title, {"exclusions": {"target-job-rule": None}})
    assert not excluded(found, title, {"exclusions": {"target-instance-rule": None}})
