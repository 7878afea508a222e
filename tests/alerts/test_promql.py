"""Prometheus accepts every rule, and agrees with the daemon."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from alerts.test_builtin import TROUBLE_AT, TROUBLES, healthy
from alerts.ticking import FAMILIES
from processes import DEADLINE

from trackside_daemon.alerts.rules import builtin
from trackside_daemon.alerts.rules.custom import rules
from trackside_daemon.alerts.rules.query import TARGETS
from trackside_daemon.alerts.rules.recording import positive_rule, up_rule
from trackside_daemon.alerts.settings import RuleSection, ThresholdsSection

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trackside_daemon.alerts.rules.rule import Rule

PROMTOOL = shutil.which("promtool")

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")

EVERY = 15
"""Seconds between two scrapes."""


def promtool(*arguments: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr


def written(path: Path, all_rules: Iterable[Rule]) -> Path:
    all_rules = list(all_rules)
    counted = {rule.query.metric.name: rule.query.metric for rule in all_rules if rule.query.fresh}
    recorded = [up_rule("trackside"), *(positive_rule(metric, TARGETS) for metric in counted.values())]
    first = [one._asdict() for one in recorded]
    groups = [{"name": "trackside", "rules": [*first, *(rule.prometheus() for rule in all_rules)]}]
    path.write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    return path


def test_prometheus_accepts_every_rule(tmp_path: Path) -> None:
    odd = RuleSection(
        alert="Odd", metric='key:a"b\\c', labels={"run": '~x\\d+"'}, above=1, summary="{run} {{ $x }}"[:5]
    )
    custom = rules([odd, RuleSection(alert="Gone", metric="trackside_gpu_up", absent=True)], FAMILIES)
    file = written(tmp_path / "rules.yml", [*builtin.rules(ThresholdsSection()), *custom])
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(file))


def quoted(series: str, instance: str) -> str:
    name, _, rest = series.partition("{")
    pairs = [part.split("=", 1) for part in rest.rstrip("}").split(",") if part]
    pairs += [["job", "trackside"], ["instance", instance]]
    labels = ", ".join(f'{label}="{value}"' for label, value in pairs)
    return f"{name}{{{labels}}}"


def judged(found: list[tuple[str, int, Any]]) -> dict[str, Any]:
    """Return a promtool test of healthy machines that then get into trouble: each into another, given with its alert and time.

    The test expects no alert shortly before the troubles, and each alert on its machine *within* seconds of them.
    """
    series: dict[str, list[str]] = {}
    expected: list[dict[str, Any]] = [
        {"expr": 'count(ALERTS{alertstate="firing"})', "eval_time": f"{TROUBLE_AT - EVERY}s", "exp_samples": []}
    ]
    for number, (alert, within, trouble) in enumerate(found):
        machine = f"node{number}"
        length = TROUBLE_AT + within + 60
        series[quoted("up", machine)] = ["1"] * (length // EVERY + 1)
        for tick in range(length // EVERY + 1):
            now = tick * EVERY
            values = healthy(now) if now < TROUBLE_AT else {**healthy(now), **trouble(now - TROUBLE_AT)}
            for name, value in values.items():
                row = series.setdefault(quoted(name, machine), ["_"] * tick)
                row += ["_"] * (tick - len(row))
                row.append("stale" if value is None else repr(float(value)))
        fires = f'count(ALERTS{{alertname="{alert}", alertstate="firing", instance="{machine}"}}) > bool 0'
        expected.append({"expr": fires, "eval_time": f"{length}s", "exp_samples": [{"labels": "{}", "value": 1}]})
    return {
        "interval": f"{EVERY}s",
        "input_series": [{"series": name, "values": " ".join(row)} for name, row in series.items()],
        "promql_expr_test": expected,
    }


def test_prometheus_finds_the_same_troubles_and_nothing_on_a_healthy_machine(tmp_path: Path) -> None:
    written(tmp_path / "rules.yml", builtin.rules(ThresholdsSection()))
    test = judged([(alert, within, trouble) for alert, _, within, trouble in TROUBLES if within < 1000])
    file = tmp_path / "tests.yml"
    document = {"rule_files": ["rules.yml"], "evaluation_interval": f"{EVERY}s", "tests": [test]}
    file.write_text(json.dumps(document), encoding="utf-8")
    promtool("test", "rules", str(file))
