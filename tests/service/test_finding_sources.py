"""The rules as the command line and the daemon take them from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import run_here

from trackside_daemon.alerts.process_memory_leaks import ProcessLeaks
from trackside_daemon.alerts.rules.evaluation import RuleEvaluator
from trackside_daemon.alerts.settings import AlertsSection, RuleSection
from trackside_daemon.model.state import State
from trackside_daemon.service.finding_sources import finding_sources, rules

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from processes import Daemon

RULE = "{alert: Skipped, metric: trackside_collector_skipped_total, change: 5m, above: 3}"


def check(path: Path, rule: str) -> subprocess.CompletedProcess[str]:
    path.write_text(f"alerts: {{rules: [{rule}]}}\n", encoding="utf-8")
    return run_here("check-config", "--settings", str(path))


def test_check_config_shows_the_rules(tmp_path: Path) -> None:
    done = check(tmp_path / "t.yml", RULE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "alerts.rules: Skipped (change of trackside_collector_skipped_total in 300s above 3)" in done.stdout
    assert "alerts.thresholds.gpu-throttled-ratio: 0.5" in done.stdout


@pytest.mark.parametrize(
    "wrong", ["{alert: Skipped, metric: trackside_colector_success, below: 1}", "{alert: Skipped}"]
)
def test_check_config_names_the_rule_that_is_wrong(tmp_path: Path, wrong: str) -> None:
    done = check(tmp_path / "t.yml", wrong)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "t.yml: alerts.rules: rule Skipped: " in done.stderr


OFF = "alerts: {off: [GpuHot, Skipped, Watchdogs, gpuhot, 'TracksideNonFinite@a', TracksideSidecarDown, Nope]}"
MISSPELT = [
    "alerts.off: there is no alert 'Watchdogs'; did you mean TracksideWatchdog?",
    "alerts.off: there is no alert 'gpuhot'; did you mean GpuHot?",
    "alerts.off: there is no alert 'Nope'; docs/alerts.md lists them",
]


def test_check_config_names_what_is_turned_off_and_is_no_alert(tmp_path: Path) -> None:
    (tmp_path / "t.yml").write_text(f"{OFF}\nalerts.rules: [{RULE}]\n", encoding="utf-8")
    done = run_here("check-config", str(tmp_path / "t.yml"))
    assert done.returncode == 0
    assert done.stderr.splitlines() == [f"trackside: {tmp_path / 't.yml'}: {line}" for line in MISSPELT]


def test_a_daemon_warns_of_what_is_turned_off_and_is_no_alert(
    start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    (tmp_path / "t.yml").write_text(f"{OFF}\nalerts.rules: [{RULE}]\n", encoding="utf-8")
    daemon = start_daemon(f"--config.file={tmp_path / 't.yml'}")
    for line in MISSPELT:
        assert any("level=warning" in reported and line in reported for reported in daemon.log)


def test_a_daemon_watches_by_the_rules_and_for_leaks() -> None:
    own = RuleSection(alert="Skipped", metric="trackside_collector_skipped_total", change=300.0, above=3.0)
    assert rules(AlertsSection(rules=(own,)))[-1].alert == "Skipped"
    assert [type(one) for one in finding_sources(State(), AlertsSection(), [])][-3:-1] == [RuleEvaluator, ProcessLeaks]
    assert finding_sources(State(), AlertsSection(enabled=False), []) == []
