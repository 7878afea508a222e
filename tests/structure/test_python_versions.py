"""What a supported Python refuses or warns of, that this one accepts, and that neither mypy nor ruff reports."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

ONLY_BASES = {"NamedTuple", "TypedDict"}
"""Bases beside which Python 3.10 accepts no other, not even `Generic`."""


def test_the_versions_that_are_tested_are_those_that_are_promised() -> None:
    project = ProjectMetadata(str(ROOT), PluginManager()).core
    promised = [one.rpartition(" ")[2] for one in project.classifiers if re.search(r":: Python :: 3\.\d+$", one)]
    assert f">={promised[0]}" == project.requires_python
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"\nPYTHONS := {' '.join(promised)}\n" in makefile


def test_no_tuple_and_no_dictionary_type_has_a_second_base() -> None:
    wrong = [
        f"{place}: {node.name}"
        for place, node in _nodes("NamedTuple", "TypedDict")
        if isinstance(node, ast.ClassDef)
        and len(node.bases) > 1
        and ONLY_BASES & {ast.unparse(one) for one in node.bases}
    ]
    assert wrong == [], "use a dataclass"


def test_sqlite_has_its_options_by_keyword() -> None:
    """Python 3.12 warns of a second positional argument, and 3.15 accepts none."""
    wrong = [
        place
        for place, node in _nodes("sqlite3.connect")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sqlite3.connect" and len(node.args) > 1
    ]
    assert wrong == []


def _nodes(*words: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes, each with its place, of all files that contain one of the words."""
    for folder in ("client", "daemon", "tests", "bench", "docs", "grafana", "deploy", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in words):
                for node in ast.walk(ast.parse(text)):
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", node
