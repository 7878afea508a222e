"""The report of ``make gpu``: verdicts, failed parts, and the alerts of the training."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import pytest
from processes import ROOT

from bench.gpu_report import result
from bench.gpu_report.__main__ import Part, _outcome
from bench.gpu_report.evidence import CHECKS, Evidence, deserved
from bench.gpu_report.report import Outcome, failures, render
from bench.gpu_report.result import Result, Table
from bench.gpu_report.wheels import requirements

if TYPE_CHECKING:
    from pathlib import Path

ALERTS = (ROOT / "docs" / "alerts.md").read_text()


def test_a_result_survives_its_file_and_each_figure_has_its_verdict(tmp_path: Path) -> None:
    measured = Result(tables=[Table(["way"], [["a|b"]])], notes=["noted"])
    measured.at_most("fast", 24.0, 25.0, "µs")
    measured.at_most("slow", 26.0, 25.0, "µs")
    measured.at_most("rehearsed", 26.0, 25.0, "µs", judged=False)
    measured.write(tmp_path / "part.json")
    assert result.read(tmp_path / "part.json") == measured
    outcomes = [Outcome("Pushes", measured, "", [], 1.0), Outcome("Broken", Result(), "exit status 1", ["last"], 2.0)]
    text = render(outcomes, 3.0, rehearse=False)
    assert "| Pushes | fast | 24 µs | <= 25 µs | met |" in text
    assert "| Pushes | slow | 26 µs | <= 25 µs | **MISSED** |" in text
    assert "| Pushes | rehearsed | 26 µs | <= 25 µs | - |" in text
    assert "| a\\|b |" in text
    assert "```\nlast\n```" in text
    assert "rehearsal" not in text
    assert "This is a rehearsal" in render(outcomes, 3.0, rehearse=True)
    assert [line.split(":")[0] for line in failures(outcomes)] == ["Pushes", "Broken"]


def test_a_part_that_fails_or_outlasts_its_time_is_an_outcome_with_its_last_lines(tmp_path: Path) -> None:
    later = time.monotonic() + 60
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    missing = _outcome(Part("nothing", "Nothing", 60.0), sys.executable, environ, tmp_path, later, rehearse=True)
    assert missing.failure == "exit status 1: ModuleNotFoundError: No module named 'bench.gpu_report.nothing'"
    assert missing.lines[0] == "Traceback (most recent call last):"
    slow = _outcome(Part("nothing", "Slow", 0.01), sys.executable, environ, tmp_path, later, rehearse=True)
    assert slow.failure == "took longer than 0 s"
    assert _outcome(Part("nothing", "Late", 60.0), sys.executable, environ, tmp_path, 0.0, rehearse=True).failure


def test_the_wheels_are_for_the_daemon_and_the_tests_and_never_pytorch() -> None:
    names = {line.partition(">")[0] for line in requirements()}
    assert {"pyzmq", "msgspec", "nvidia-ml-py", "pytest", "hypothesis", "httpx"} <= names
    assert not names & {"torch", "numpy", "lightning", "transformers"}


def test_each_check_is_of_an_alert_that_exists() -> None:
    assert [name for name in CHECKS if f"\n### {name}\n" not in ALERTS] == []


@pytest.mark.parametrize(
    ("alert", "calm", "evidence"),
    [
        ("SlowStep", Evidence(durations=[1.0] * 9), Evidence(durations=[1.0] * 8 + [1.6])),
        ("ThroughputRegression", Evidence(durations=[1.0] * 9), Evidence(durations=[1.0] * 20 + [1.2] * 20)),
        ("CpuSaturated", Evidence(), Evidence(pressure={"cpu some": 70.0})),
        ("GpuHot", Evidence(gpus=[{"temperature.gpu": "60"}]), Evidence(gpus=[{"temperature.gpu": "86"}])),
        (
            "GpuThrottled",
            Evidence(gpus=[{"clocks_event_reasons.hw_slowdown": "Not Active"}]),
            Evidence(gpus=[{"clocks_event_reasons.hw_slowdown": "Active"}]),
        ),
        (
            "PcieDegraded",
            Evidence(gpus=[{"pcie.link.width.current": "16", "pcie.link.width.max": "16"}]),
            Evidence(gpus=[{"pcie.link.width.current": "8", "pcie.link.width.max": "16"}]),
        ),
    ],
)
def test_an_alert_is_deserved_by_what_another_source_shows(alert: str, calm: Evidence, evidence: Evidence) -> None:
    assert not deserved(alert, calm)
    assert deserved(alert, evidence)
    assert not deserved("LossSpike", evidence)
