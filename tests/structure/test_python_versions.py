"""Code that a supported Python refuses or warns of, whereas this one accepts it, and mypy and ruff do not report it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from processes import ROOT
from pythons import SUPPORTED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ONLY_BASES = {"NamedTuple", "TypedDict"}
"""Bases beside which Python 3.10 accepts no other, not even `Generic`."""


def test_the_versions_that_are_promised_are_those_that_are_tested() -> None:
    project, makefile = (ROOT / name for name in ("pyproject.toml", "Makefile"))
    assert f'\nrequires-python = ">={SUPPORTED[0]}"\n' in project.read_text(encoding="utf-8")
    assert f"\nPYTHONS := {' '.join(SUPPORTED)}\n" in makefile.read_text(encoding="utf-8")


def test_no_tuple_and_no_dictionary_type_has_a_second_base() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in _files()
        for name, bases in re.findall(r"^ *class (\w+)\(([^)]*)\)", text, re.MULTILINE)
        if len(names := re.findall(r"[\w.]+", re.sub(r"\[.*?\]|\w+=", "", bases))) > 1
        and ONLY_BASES.intersection(names)
    ]
    assert wrong == [], "use a dataclass"


def test_sqlite_has_its_options_by_keyword() -> None:
    """Python 3.13 warns of a second positional argument, and 3.15 accepts none."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, text in _files()
        if "sqlite3.connect" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sqlite3.connect" and len(node.args) > 1
    ]
    assert wrong == []


def test_no_placeholder_of_sqlite_is_numbered() -> None:
    """The first releases of Python 3.12 warn of ``?1`` with a sequence of values."""
    wrong = [
        f"{path.relative_to(ROOT)}: {found}"
        for path, text in _files()
        if ".execute" in text
        for found in re.findall(r"[ (]\?[1-9]", text)
    ]
    assert wrong == [], "give it a name, as in :run"


def _files() -> Iterator[tuple[Path, str]]:
    """Yield the files of the repository with their texts."""
    for folder in ("client", "daemon", "tests", "bench", "docs", "grafana", "deploy", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")
