"""Each command that prints a document prints it in every format, and nothing that a run wrote is markup in any of them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from histories import BEGIN, column, finished, history, opened

from trackside_daemon.cli.main import load
from trackside_daemon.documents import text
from trackside_daemon.documents.elements import Code, Document, Table, facts
from trackside_daemon.model.records import Alert, Event

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "</script><script>alert(1)</script>\x1b]0;x|\u202e\n`=1"
COMMANDS = (
    ("show", "evil"),
    ("show", "evil", "--resources"),
    ("why", "evil"),
    ("compare", "plain", "evil"),
    ("alerts", "show", "1"),
    ("report", "plain", "evil", "--output", "-"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with a plain run and one whose every text is hostile."""
    directory = tmp_path_factory.mktemp("hostile")
    with history(directory) as one:
        for run, name in (("plain", "gpt"), ("evil", HOSTILE)):
            session = replace(
                opened(run, name=name, config={name: name}, tags=(name,)),
                about={"command": [name], "host": name, "hardware": {"gpus": [name]}},
            )
            raised = {"type": name, "text": name, "traceback": f"  {name}\n{name}"}
            one.put([session, column(run, ["loss", name], 30), Event(run, 0, BEGIN, name, 0, 1, {name: name})])
            one.put([Event(run, 0, BEGIN, "exception", 0, 1, raised), finished(run, cause=name)])
        evidence = {"exception": raised, "missing": [HOSTILE], "ranks": {HOSTILE: {HOSTILE: HOSTILE}}, HOSTILE: HOSTILE}
        one.put([Alert("NonFinite", "critical", BEGIN, "evil", {}, HOSTILE, HOSTILE, BEGIN + 9, evidence)])
    return directory


def printed(place: Path, *arguments: str) -> str:
    ended = CliRunner().invoke(load(arguments[0]), [*arguments[1:], f"--storage.path={place}"])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("form", ["text", "markdown", "md", "html", "csv", "json"])
def test_a_document_has_nothing_of_a_run_as_markup_in_any_format(
    place: Path, command: tuple[str, ...], form: str
) -> None:
    out = printed(place, *command, f"--format={form}")
    assert "\x1b" not in out
    if form == "json":
        assert json.loads(out)
        return
    assert "\u202e" not in out
    if form == "csv":
        assert list(csv.reader(io.StringIO(out), strict=True))
    elif form == "html":
        assert out.count("<script") == (2 if command[0] == "report" else 0)
    elif form != "text":
        prose = re.sub("^    .*$", "", out, flags=re.MULTILINE)  # without blocks of code
        assert prose.startswith("# ")
        assert not re.search(r"(?<!\\)[<>`]", prose)
        for lines in re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines.splitlines()}) == 1


@pytest.mark.parametrize(
    ("file", "begins"),
    [("r.md", "# gpt"), ("r.HTML", "<!DOCTYPE html>"), ("r.txt", "summary:"), ("r.csv", "summary\n"), ("r", "<!")],
)
def test_the_suffix_of_a_report_selects_its_format(place: Path, tmp_path: Path, file: str, begins: str) -> None:
    printed(place, "report", "plain", "-o", str(tmp_path / file))
    assert (tmp_path / file).read_text().startswith(begins)
    printed(place, "report", "plain", "-o", str(tmp_path / file), "--format=json")
    assert json.loads((tmp_path / file).read_text())["reports"]


def test_lines_are_as_wide_as_the_terminal_and_commands_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "python train.py " + "--flag " * 20
    document = Document(
        "",
        [
            facts("", {"state": "finished " * 12, "command": Code(command)}),
            Table("events", ("after", "fields"), [("1 s", "a=1 " * 30), ("2 s", "")], flexible=" ="),
            Table("speed", ("", "a", "b"), [("loss", "1", "0.5 of the baseline, 99.5 %")]),
            Table("size", ("", "a", "b"), [("weights", "2", "3")]),
        ],
    )
    monkeypatch.setenv("COLUMNS", "60")
    lines = list(text.write(document))
    assert [line for line in lines if len(line) > 60] == [f"command   {command}"]
    assert lines[lines.index("events:") + 1 :][:3] == ["  AFTER", "  1 s", f"    {'a=1 ' * 13}a=1"]
    first, second = (next(line for line in lines if key in line) for key in ("  loss", "  weights"))
    assert lines.count(next(line for line in lines if line.split() == ["a", "b"])) == 1
    assert len(first) == len(second) == len(lines[lines.index("speed:") - 1])
