"""The words of the product: no name and no docstring that a stranger has to guess at."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pytest
from processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = [path for part in ("client", "daemon") for path in sorted((ROOT / part).rglob("*.py"))]
TEST_FILES = [
    path
    for part in ("tests", "bench")
    for path in sorted((ROOT / part).rglob("*.py"))
    if not path.is_relative_to(ROOT / "tests" / "public")  # training scripts of others
]

VERBS = {
    "take": "accept, read, get, evaluate",
    "tell": "report, send, notify",
    "told": "reported, sent",
    "say": "report, write, render",
    "said": "reported",
    "hear": "receive, handle",
    "look": "poll, read, evaluate",
    "adopt": "restore",
    "know": "set, register",
    "lend": "grant",
    "see": "read, apply, find",
}
"""Verbs that mean many things in this product, each with those that mean one."""

DIALECT = {
    "told tells tell telling": "reports, notifies, warns, logs, sends",
    "said says say saying": "reports, prints, names, explains",
    "heard hears hear hearing": "receives",
    "looks looked look looking": "reads, checks, polls, searches",
    "nobody somebody anybody": "no other user, without a client, a listener",
    "who whom whose whoever": "the process, user or session that is meant; a relative clause with *that* or *with*",
    "taken": "accepted, read, used, occupied",
    "knew befalls befell ails": "what is stored or found, which fault it is",
}
"""Words of a story in the names of tests, each with those that name what happens."""

NAMES = {
    "utils": "what is in it?",
    "helpers": "what is in it?",
    "common": "what is in it?",
    "manager": "what does it do?",
}
"""File names that say nothing."""

OPENINGS = re.compile(
    r"(What|Whether|How|Those|Of|So|The same|One of them|All of|Who|Whose|Which|It|As|Its|That|If|Where|When)\b"
)
"""Openings of a docstring that promise a riddle: open with an imperative, or with a noun phrase that names the subject."""

PLAIN = re.compile(
    r"\b((?<!each )(?<!any )of which|is told|are told|nobody is|befall\w*|ails?|whoever|what is so)\b", re.IGNORECASE
)
"""Turns that hide who does what."""


class Definition(NamedTuple):
    """A module, class or function, with its docstring."""

    file: Path
    line: int
    name: str
    docstring: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} {self.name}: {self.docstring.splitlines()[0] if self.docstring else ''}"


def definitions(file: Path) -> Iterator[Definition]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    yield Definition(file, 1, "module", ast.get_docstring(tree) or "")
    yield from _definitions_in(file, tree)


def _definitions_in(file: Path, node: ast.AST) -> Iterator[Definition]:
    """Yield what a block defines: definitions are statements, and the expressions are nine tenths of a file."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield Definition(file, child.lineno, child.name, ast.get_docstring(child) or "")
            if not isinstance(child, ast.expr):
                yield from _definitions_in(file, child)


@cache  # and no constants, which each process that collects the tests would make
def ours() -> list[Definition]:
    return [definition for file in FILES for definition in definitions(file)]


def with_riddles() -> list[Definition]:
    """Return the definitions of the tests' files that have a docstring with such an opening, if not others."""
    opening = re.compile(rf'["\']{{3}}\s*{OPENINGS.pattern}')
    files = [file for file in TEST_FILES if opening.search(file.read_text(encoding="utf-8"))]
    return [definition for file in files for definition in definitions(file)]


@cache
def names_of_tests() -> list[tuple[Path, str]]:
    """Return the files of tests and benchmarks, each with its own name and those of its functions, fixtures and classes."""
    named = re.compile(r'^ *(?:async )?(?:def|class) +(\w+)|\bfixture\([^)]*name="(\w+)"', re.MULTILINE)
    found = [(file, file.stem) for file in TEST_FILES]
    for file in TEST_FILES:
        found += [(file, name or fixture) for name, fixture in named.findall(file.read_text(encoding="utf-8"))]
    return found


def words_of(name: str) -> set[str]:
    """Return the words of a name, in lower case."""
    return {one.lower() for one in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def test_there_is_something_to_read() -> None:
    assert len(ours()) > 2000
    assert len(TEST_FILES) > 500


@pytest.mark.parametrize("verb", VERBS)
def test_no_method_has_a_verb_that_means_everything(verb: str) -> None:
    banned = re.compile(rf"_*{verb}(_|$)")
    assert [str(one) for one in ours() if banned.match(one.name)] == [], f"instead of {verb}: {VERBS[verb]}"


@pytest.mark.parametrize("words", DIALECT)
def test_names_of_tests_fixtures_and_helpers_have_plain_words(words: str) -> None:
    banned = set(words.split())
    found = [f"{file.relative_to(ROOT)}: {name}" for file, name in names_of_tests() if banned & words_of(name)]
    assert found == [], f"instead of {words}: {DIALECT[words]}"


def test_no_file_is_a_drawer() -> None:
    assert [str(file) for file in FILES if file.stem.strip("_") in NAMES] == []


def test_no_docstring_opens_with_a_riddle() -> None:
    assert [str(one) for one in [*ours(), *with_riddles()] if OPENINGS.match(one.docstring)] == []


def test_docstrings_are_plain() -> None:
    assert [str(one) for one in ours() if PLAIN.search(one.docstring)] == []
