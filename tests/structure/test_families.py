"""The name of a metric family stands in one place: `trackside_daemon.model.families`."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest
from processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAEMON = ROOT / "daemon" / "trackside_daemon"
FILES = [path for path in sorted(DAEMON.rglob("*.py")) if DAEMON / "model" / "families" not in path.parents]

NAME = re.compile(r"(?<![\w:./-])trackside_(?!daemon\b)[a-z]\w*")
"""A family's name or the begin of one. After a colon, it is part of the name of a recording rule."""

LOG_FIELDS = {"trackside_run_id"}

DEFINITIONS = {"Metric", "define"}
CALL = re.compile(r"\b(?:Metric|define)\(")


def parsed(text: re.Pattern[str]) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the files that have a text, with their trees; to parse them all takes seconds."""
    for path in FILES:
        source = path.read_text()
        if text.search(source):
            yield path, ast.parse(source)


def names(tree: ast.Module) -> Iterator[str]:
    """Yield the names in the strings of a module, without docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from NAME.findall(node.value)


def definitions(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that define a family."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DEFINITIONS:
            yield node.lineno


def test_no_other_file_spells_the_name_of_a_family() -> None:
    """A misspelt name reads no series, and nothing reports it: import the constant, and take its `name`."""
    spelt = {path: {*names(tree)} - LOG_FIELDS for path, tree in parsed(NAME)}
    assert {path: found for path, found in spelt.items() if found} == {}


def test_no_other_file_defines_a_family() -> None:
    """Nothing has to import a collector for a name."""
    defined = {path: [*definitions(tree)] for path, tree in parsed(CALL) if path != DAEMON / "model" / "metric.py"}
    assert {path: lines for path, lines in defined.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('Query("trackside_gpu_up")', ["trackside_gpu_up"]),
        ('f"trackside_gpu_{name}"', ["trackside_gpu_"]),
        ('print("see trackside_host_cpus.")', ["trackside_host_cpus"]),
        ('print("run:trackside_training_mfu:ratio")', []),
        ('print("trackside_daemon.model")', []),
        ('"""Labels of ``trackside_gpu_info``."""', []),
    ],
)
def test_names_are_found_in_strings(text: str, found: list[str]) -> None:
    assert [*names(ast.parse(text))] == found
