"""The tests in tests/gpu, in full."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

from bench.gpu_report.environment import ROOT
from bench.gpu_report.result import Figure, Result

SECONDS = 140.0


def measure(result: Result, *, rehearse: bool) -> None:
    """Run pytest; in a rehearsal, tests that need CUDA are skipped."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "tests/gpu", "-p", "no:cacheprovider", f"--junitxml={report}"]
        # Another version of PyTorch, or a plugin that is there, may warn about anything.
        command += ["-W", "default", "--tb=short", "--color=no", "-v", "-o", "faulthandler_timeout=60"]
        environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        output = Path(directory) / "output.txt"
        try:
            with output.open("w") as file:
                subprocess.run(command, cwd=ROOT, env=environ, stdout=file, stderr=file, timeout=SECONDS, check=False)
        finally:
            printed = output.read_text(errors="replace")
            print(printed[-20_000:])
        cases = list(ET.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    passed = len(cases) - len(failed) - len(skipped)
    result.figures.append(Figure("tests passed", str(passed), "> 0", passed > 0 or (None if rehearse else False)))
    result.figures.append(Figure("tests failed", str(len(failed)), "0", not failed))
    result.figures.append(Figure("tests skipped", str(len(skipped)), "0", None if rehearse else not skipped))
    result.notes += [f"Failed: {case.get('classname')}::{case.get('name')}: {_reason(case)}" for case in failed]
    reasons = {f"Skipped: {_reason(case)}" for case in skipped}
    result.notes += [*sorted(reasons), *[line for line in printed.splitlines() if " us, p99 " in line]]


def _reason(case: ET.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        if (element := case.find(kind)) is not None:
            return " ".join((element.get("message") or "").split())[:300]
    return ""
