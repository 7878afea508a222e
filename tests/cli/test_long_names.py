"""No table of a command is widened by a key, name, tag or path of thousands of letters, also where no terminal limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import layer_frames
import pytest
from histories import BEGIN, column, finished, history, opened
from processes import run_here
from session_records import batch_ingested

from trackside_daemon.documents.elements import Document, Table
from trackside_daemon.documents.text import CELL, PATH, READABLE, table, write
from trackside_daemon.model.capture import Capture, ProfileOptions
from trackside_daemon.model.checkpoint import Checkpoint
from trackside_daemon.model.records import Alert, Event

if TYPE_CHECKING:
    from pathlib import Path

LONG = "x" * 5000
WIDE = 7 * CELL + 2 * PATH
"""More than any line of a table has here."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of two runs whose names, keys, tags, settings, layers and paths are long."""
    place = tmp_path_factory.mktemp("long")
    with history(place / "history") as one:
        for run in ("a", "b"):
            config: dict[str, Any] = {LONG: run, "path": f"/{run}{LONG}"}
            layers = layer_frames.frame(3, {LONG: layer_frames.normal(1), "head": layer_frames.normal(2)})
            record = opened(run, name=f"{LONG}{run}", config=config, tags=(LONG,))
            one.put(
                [
                    record,
                    column(run, [LONG, "loss"], 30),
                    batch_ingested(record.session.id, 2, distributions=[layers]),
                    Event(run, 0, BEGIN, "summary", 0, 1, {LONG: 2.0 if run == "a" else 3.0}),
                    Event(run, 0, BEGIN, LONG, 0, 1, {LONG: LONG}),
                    Checkpoint(run, f"/{LONG}", 0, BEGIN, "event", step=3, metrics={LONG: 1.0}, reason=LONG),
                    Alert("LossSpike", "warning", BEGIN, run, {"key": LONG}, "short", "short", BEGIN + 5, {LONG: 1.0}),
                    Capture(
                        run * 12,
                        run,
                        0,
                        "profile",
                        "alert",
                        5.0,
                        (0,),
                        ProfileOptions(None, 1.0),
                        "failed",
                        reason=LONG,
                    ),
                    finished(run, state="failed", cause="short"),
                ]
            )
    return place


TABLES = {
    "runs": [],
    "compare": ["a", "b"],
    "layers": ["a"],
    "checkpoints": ["a"],
    "captures": ["a"],
    "alerts": [],
}
"""Commands that print tables alone."""

OTHERS = {
    "show": ["a"],
    "show --resources": ["a"],
    "alerts show": ["1"],
    "why": ["a"],
    "fleet": [],
    "doctor": [],
}
"""Commands that print long texts as well, each in its own line."""


def output(stored: Path, name: str, arguments: list[str], columns: int | None = None) -> list[str]:
    environ = {"XDG_RUNTIME_DIR": str(stored), "TRACKSIDE_STORAGE__PATH": str(stored / "history"), "HOME": str(stored)}
    environ |= {"COLUMNS": str(columns)} if columns else {}
    return str(run_here(*name.split(), *arguments, environ=environ).stdout).splitlines()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_as_wide_as_its_columns_may_be(stored: Path, name: str) -> None:
    lines = output(stored, name, TABLES[name])
    assert lines
    assert max(map(len, lines)) <= WIDE
    assert not any("x" * (PATH + 1) in line for line in lines)
    assert any("x…x" in line for line in lines)
    assert max(map(len, output(stored, name, TABLES[name], 100))) <= 100


@pytest.mark.parametrize("name", OTHERS)
def test_no_line_is_padded_to_a_long_neighbour(stored: Path, name: str) -> None:
    lines = output(stored, name, OTHERS[name])
    assert lines
    assert not any(" " * (2 * CELL) in line for line in lines)


def test_a_cell_loses_its_middle_and_the_last_column_may_be_longer() -> None:
    first, second = table(["A", "B"], [["k" * 500, "/" * 500]])
    assert (len(first), len(second)) == (CELL + 3, CELL + 2 + PATH)


def test_columns_side_by_side_stay_readable_in_a_pipe_and_no_cell_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    cells = [f"{number}.123 ± 0.456 s, std 0.789 s" for number in range(12)]
    header = ["", *(f"group {number} (3 runs)" for number in range(12))]
    lines = list(write(Document("", [Table("measured", header, [("step_time", *cells)])])))
    assert max(map(len, lines)) <= READABLE
    assert [cell for cell in cells if cell not in "\n".join(lines)] == []
