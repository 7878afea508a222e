"""Every command on a page runs here or in another test, or the page states a requirement that is missing here.

Prometheus answers the queries of docs/prometheus.md and accepts its configurations.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from docs_commands.blocks import PAGES, Command, commands, fences, programs
from docs_commands.proofs import PROOFS, Elsewhere, Needs, Runs, Serves, proof
from docs_commands.sandbox import Sandbox
from processes import ROOT, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

HELP = ROOT / "tests" / "behavior" / "recorded" / "help"
COMMANDS = [one for page in PAGES for one in commands(page)]
SHOWN = {text: language for page in PAGES for language, text, _ in fences(page)}
PROMETHEUS = [(language, text) for language, text, _ in fences(ROOT / "docs" / "prometheus.md")]
QUERIES = [
    re.sub(r"\s+#.*", "", line) for language, text in PROMETHEUS if language == "promql" for line in text.splitlines()
]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """One sandbox for all commands, so that a command finds the results of the earlier ones."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place, Sandbox(Path(place)) as made:
        yield made


def named(one: Command) -> str:
    return f"{one.page}: {one.text[:50]}"


def of(*kinds: type) -> pytest.MarkDecorator:
    chosen = [one for one in COMMANDS if isinstance(proof(one.text), kinds)]
    return pytest.mark.parametrize("one", chosen, ids=named)


def test_every_command_is_proven() -> None:
    found = [f"{one.page}: {one.text}" for one in COMMANDS if proof(one.text) is None]
    assert found == [], (
        "a line for each of them is missing in PROOFS of tests/docs_commands/proofs.py: Runs() if it is harmless, Elsewhere(…) "
        'by another test, or Needs("…") with the words "needs …" on the page'
    )


def test_every_proof_is_used() -> None:
    used = {proof(one.text) for one in COMMANDS}
    assert [pattern for pattern, how in PROOFS if how not in used] == []


def test_a_text_of_the_form_of_commands_is_a_block_of_them() -> None:
    known = {words[0] for one in COMMANDS for words in programs(one.text) if words}
    begins = {text: text.replace("$ ", "").split(maxsplit=1)[0] for text, language in SHOWN.items() if not language}
    assert [text for text, first in begins.items() if first in known] == [], "write ```sh"


@of(Needs)
def test_the_page_names_what_is_needed(one: Command) -> None:
    how = proof(one.text)
    assert isinstance(how, Needs)
    assert how.is_stated(one.near), f'{one.page} has to say near {one.text!r}, or at its beginning: "needs {how.what}"'


@of(Elsewhere)
def test_the_test_that_does_it_exists(one: Command) -> None:
    how = proof(one.text)
    assert isinstance(how, Elsewhere)
    file, _, name = how.by.partition("::")
    assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


def help_of(*path: str) -> str:
    """Return the help of a command, which tests/behavior compares with the real one."""
    return (HELP / f"{'-'.join(path) or 'trackside'}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("one", [one for one in COMMANDS if "trackside " in one.text], ids=named)
def test_every_flag_of_trackside_is_one(one: Command) -> None:
    for words in programs(one.text):
        if words[:1] == ["trackside"]:
            path = words[1:3] if words[1] == "spool" or words[2:3] == ["dismiss"] else words[1:2]
            ours = words[: words.index("--")] if "--" in words else words  # behind it they are another program's
            flags = {word.partition("=")[0] for word in ours if word.startswith("--")}
            known = help_of(*path) + help_of()  # which has those of every command
            unknown = {flag for flag in flags if not re.search(rf"{re.escape(flag)}(?![\w.-])", known)}
            assert unknown == set()


@of(Runs, Serves)
def test_it_runs(sandbox: Sandbox, one: Command) -> None:
    how = proof(one.text)
    if isinstance(how, Serves):
        sandbox.serve(one.text)
        return
    assert isinstance(how, Runs)
    done = sandbox.run(one.text, one.page)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(how.prints, done.stdout), done.stdout


@pytest.mark.parametrize("query", QUERIES)
def test_a_question_to_prometheus_has_an_answer(sandbox: Sandbox, query: str) -> None:
    eventually(lambda: sandbox.prometheus.query(query))


@pytest.mark.parametrize("block", [text for language, text in PROMETHEUS if language == "yaml"])
def test_prometheus_accepts_what_the_page_shows_of_a_configuration(tmp_path: Path, block: str) -> None:
    (tmp_path / "trackside.rules.yml").write_text("groups: []\n")
    (tmp_path / "prometheus.yml").write_text(block)
    check = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
