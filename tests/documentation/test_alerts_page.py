"""docs/alerts.md has a section for each alert, and for no other; everything that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import processes
import pytest
import yaml
from documents import documented, generator
from processes import ROOT

from trackside_daemon import checkpoints, detectors
from trackside_daemon.alerts import process_memory_leaks, slow_collectives
from trackside_daemon.alerts.rules import builtin
from trackside_daemon.alerts.rules.fleet import fleet
from trackside_daemon.alerts.settings import ThresholdsSection
from trackside_daemon.detectors import layers, rank_detectors
from trackside_daemon.detectors.run_watch import ALERTS
from trackside_daemon.diagnosis import regression
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.records import LIFE_CYCLE
from trackside_daemon.model.troubles import DETECTED, RULED

PAGE = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"(?m)^### (\w+)\n\n\*\*(.*?):\*\* ", PAGE))
SECTIONS = re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)
FLEET = {one.alert for one in fleet("trackside")}


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    """The alerts of the rules in the package."""
    written = yaml.safe_load((ROOT / "deploy/prometheus/trackside.rules.yml").read_text(encoding="utf-8"))
    return [rule for group in written["groups"] for rule in group["rules"] if "alert" in rule]


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    by_rules = {rule.alert for rule in builtin.rules(ThresholdsSection())}
    by_watching = {
        *ALERTS,
        *rank_detectors.ALERTS,
        *layers.ALERTS,
        process_memory_leaks.HOST,
        slow_collectives.ALERT,
        process_memory_leaks.GPU,
        regression.ALERT,
    }
    assert sorted(SECTIONS) == sorted({*by_rules, *by_watching, *DETECTED, *RULED, *FLEET, "TracksideWatchdog"})


def test_the_list_at_the_top_is_in_the_order_of_the_sections_and_leads_to_them() -> None:
    links = re.findall(r"\[(\w+)\]\(#(\w+)\)", PAGE.partition("<!-- end of the list")[0])
    assert [name for name, _ in links] == SECTIONS
    assert all(anchor == name.lower() for name, anchor in links)


def test_the_list_and_the_sections_are_those_of_the_catalogue() -> None:
    assert generator().alerts_page(PAGE) == PAGE, "run: python docs/generate.py"


def test_each_runbook_link_of_the_rules_leads_to_its_section(rules: list[dict[str, Any]]) -> None:
    anchors = {name.lower() for name in SECTIONS} - {name.lower() for name in LIFE_CYCLE}
    linked = {rule["annotations"]["runbook_url"] for rule in rules}
    assert {link.partition("#")[0] for link in linked} == {"docs/alerts.md"}
    assert {link.partition("#")[2] for link in linked} == anchors


def test_the_severities_are_those_of_the_rules() -> None:
    found = [(rule.alert, rule.severity) for rule in builtin.rules(ThresholdsSection())]
    assert [(alert, severity) for alert, severity in found if severity not in ROWS[alert]] == []
    assert {ROWS[alert] for alert in FLEET} <= set(SEVERITIES)


def test_the_severities_are_those_in_the_code_of_the_detectors() -> None:
    found: dict[str, set[str]] = {}
    packages = (Path(str(package.__file__)).parent for package in (detectors, checkpoints))
    files = (Path(process_memory_leaks.__file__), Path(regression.__file__), Path(slow_collectives.__file__))
    for file in (*(one for package in packages for one in package.rglob("*.py")), *files):
        nodes = ast.walk(ast.parse(file.read_text("utf-8")))
        texts = {str(one.value) for one in nodes if isinstance(one, ast.Constant)}
        named, severities = texts & ROWS.keys(), texts & set(SEVERITIES)
        if file.stem != "rank_watch":  # it has the severity of an alert of an unknown one
            assert severities <= {one for name in named for one in stated(name)} or not named, file
            for name in named:
                found.setdefault(name, set()).update(severities)
    ruled = {rule.alert for rule in builtin.rules(ThresholdsSection())}
    assert found.keys() >= {*ALERTS, *DETECTED} - ruled - {"TestAlert"}
    assert [name for name in found.keys() - ruled - {"UserAlert"} if not stated(name) <= found[name]] == []


def stated(alert: str) -> set[str]:
    """Return the severities that the page states for an alert."""
    row = ROWS[alert]
    return set(SEVERITIES) if row == "as given" else set(re.findall("|".join(SEVERITIES), row))


def test_each_family_that_it_names_is_exported() -> None:
    families = {metric.name for metric in documented()}
    named = set(re.findall(r"\btrackside_\w+", PAGE))
    assert len(named) > 50
    assert named <= families


def test_each_command_that_it_names_is_one() -> None:
    shown = processes.run_here("--help").stdout
    commands = set(re.findall(r"^  ([a-z][a-z-]+)  ", shown, re.MULTILINE))
    named = set(re.findall(r"`trackside ([a-z-]+)", PAGE))
    assert named <= commands
