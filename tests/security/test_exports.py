"""A key of a run is no formula in a spreadsheet, and an import restores it."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import processes
from histories import BEGIN, history, ingested, opened
from processes import command

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
