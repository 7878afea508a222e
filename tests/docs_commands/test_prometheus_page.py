"""Queries and configurations of docs/prometheus.md: Prometheus answers the former and accepts the latter."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from docs_commands.blocks import fences
from processes import ROOT, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from docs_commands.sandbox import Sandbox

PAGE = ROOT / "docs" / "prometheus.md"
BLOCKS = [(language, text) for language, text, _ in fences(PAGE)]
QUERIES = [
    re.sub(r"\s+#.*", "", line) for language, text in BLOCKS if language == "promql" for line in text.splitlines()
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_question_has_an_answer(sandbox: Sandbox, query: str) -> None:
    eventually(lambda: sandbox.prometheus.query(query))


@pytest.mark.parametrize("block", [text for language, text in BLOCKS if language == "yaml"])
def test_prometheus_accepts_what_the_page_shows_of_a_configuration(tmp_path: Path, block: str) -> None:
    (tmp_path / "trackside.rules.yml").write_text("groups: []\n")
    (tmp_path / "prometheus.yml").write_text(block)
    check = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
