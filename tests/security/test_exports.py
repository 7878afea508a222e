"""Texts of a run in files: no formula in a spreadsheet, no control of a terminal, no name that looks like an option."""

from __future__ import annotations

import csv
import dataclasses
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import processes
import pytest
from histories import BEGIN, history, ingested, opened, session
from processes import DEADLINE, clean_environ, command
from session_records import batch_ingested

from trackside.limits import CODE_KEY
from trackside.wire import MediaItem
from trackside_daemon.cli.run import follower
from trackside_daemon.documents import csv as csv_document
from trackside_daemon.documents.elements import Document, Table
from trackside_daemon.history.files.jsonl import folder
from trackside_daemon.model.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

T = round(BEGIN * 1e6)
FORMULAS = ["=cmd|' /C calc'!A0", "@SUM(1)", "+1", "-2+3", "=a;b", "＝1", "'=1", "''@x"]  # noqa: RUF001
HARMLESS = ["loss", "it's", "'quoted'", "a=b", "grad-norm", "x@y"]


def test_no_cell_of_an_export_is_a_formula_and_an_import_restores_the_keys(place: Path) -> None:
    keys = [*FORMULAS, *HARMLESS]
    with history(place / "history") as one:
        one.put([opened("a"), ingested("a", [(1, T, dict.fromkeys(keys, -0.5))])])
        text = one.export("a", "csv").decode()
    (place / "a.csv").write_text(text)
    header = next(csv.reader(text.splitlines()))
    assert header[4:] == [*(f"'{key}" for key in FORMULAS), *HARMLESS]
    # Where a semicolon separates columns, quotes keep the cell whole.
    assert '"\'=a;b"' in text
    given = [f"--storage.path={place}/history"]
    assert processes.run(command("import", f"{place}/a.csv", "--id=again", *given)).stderr == ""
    exported = processes.run(command("export", "again", "--format=csv", *given), check=True)
    assert exported.stdout == text


def test_no_cell_of_a_document_is_a_formula_and_numbers_stay() -> None:
    table = Table("=title", ["@name", "value"], [[formula, "-1.5 %"] for formula in FORMULAS if formula != "+1"])
    cells = [cell for row in csv.reader(csv_document.write(Document("", [table])).splitlines()) for cell in row]
    assert cells == ["'=title", "'@name", "value", *(cell for row in table.rows for cell in (f"'{row[0]}", row[1]))]


HOSTILE = "a\x1b[2J\x07\u202e\x9b31m\u2028b"


@pytest.fixture
def hostile(place: Path) -> list[str]:
    """The option that names a history with a run whose name, keys and tags control a terminal."""
    with history(place / "history") as one:
        record = opened("a", tags=(HOSTILE,))
        named = dataclasses.replace(record, session=record.session._replace(name=f"-rf {HOSTILE}"))
        one.put([named, ingested("a", [(1, T, {HOSTILE: -0.5, "größe": 1.0})])])
    return [f"--storage.path={place}/history"]


def on_terminal(*asked: str) -> str:
    """Return what a command writes to a terminal."""
    ours, theirs = os.openpty()
    with processes.start(command(*asked), env=clean_environ(), stdout=theirs) as process:
        os.close(theirs)
        written = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65536):
                written += part
        assert process.wait(DEADLINE) == 0
    os.close(ours)
    return written.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    "asked",
    [
        *(["export", "a", f"--format={form}"] for form in ("csv", "json", "jsonl")),
        ["export", "a", "--output=/dev/stdout"],
        *(["report", "a", "--output=-", f"--format={form}"] for form in ("html", "md", "json")),
    ],
    ids=" ".join,
)
def test_an_export_controls_no_terminal_and_is_exact_in_a_pipe(hostile: list[str], asked: list[str]) -> None:
    shown = on_terminal(*asked, *hostile)
    assert shown.replace("\n", "").isprintable()
    piped = processes.run(command(*asked, *hostile), check=True).stdout
    assert len(shown.splitlines()) == len(piped.split("\n")) - piped.endswith("\n")
    if asked[1:] in (["a", "--format=csv"], ["a", "--output=/dev/stdout"]):
        assert f"{HOSTILE},größe\n" in piped.replace('"', "").replace("\r", "")


def test_no_file_that_is_named_after_a_run_resembles_an_option_or_is_hidden(hostile: list[str], tmp_path: Path) -> None:
    processes.run(command("report", "a", "--format=md", "--plots=plots", *hostile), cwd=tmp_path, check=True)
    names = [path.name for path in tmp_path.rglob("*")]
    assert len(names) >= 3
    assert [name for name in names if name[0] in "-."] == []
    assert [folder(name) for name in ("-rf", ".bashrc", "--") if folder(name)[0] in "-."] == []


@pytest.mark.parametrize("asked", [["checkpoints", "latest", "b"], ["compare", "b", "c", "--code"]], ids=" ".join)
def test_a_path_and_the_code_of_a_training_control_no_terminal_and_are_not_escaped_in_a_pipe(
    hostile: list[str], asked: list[str], place: Path
) -> None:
    path = place / f"step-1{HOSTILE}.pt"
    path.touch()
    with history(place / "history") as one:
        for run in "bc":
            code = MediaItem("text", CODE_KEY, round(BEGIN * 1e9), f"===== x.py\n\t{run}{HOSTILE}\n".encode(), 1)
            one.put([opened(run), batch_ingested(session(run), 1, media=[code])])
        one.put([Checkpoint("b", str(path), 0, BEGIN + 1, "event", "complete", 1, "torch", 0, None)])
    assert on_terminal(*asked, *hostile).replace("\n", "").isprintable()
    assert "\u202e\x9b31m" in processes.run(command(*asked, *hostile), check=True).stdout


def test_what_a_followed_directory_holds_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    follower._warn(f"runs/{HOSTILE}: it is cut off")
    assert capsys.readouterr().err.strip().isprintable()
