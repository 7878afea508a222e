"""Files of any bytes: an import refuses them with one line, or stores all that it read, which an export then returns."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from fuzz.mutation import mutants
from fuzz.tables import Tables
from histories import BEGIN, finished, ingested, opened

from trackside_daemon.history.files.export import FORMATS, Format, export
from trackside_daemon.history.files.importing import ImportingError, ImportResult, import_run
from trackside_daemon.history.files.items import FormatError
from trackside_daemon.history.files.run_file import open_run_file
from trackside_daemon.history.files.selection import count
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert, Event, Record

if TYPE_CHECKING:
    from collections.abc import Callable

REFUSALS = (FormatError, ImportingError, ArithmeticError, RecursionError, ValueError)
"""What the command and the API report as one line."""

FILES = (
    b"step,time,loss,lr\n0,1700000000.5,2.5,\n1,1700000001.25,nan,0.1\n2,,1e999,-0.0\n",
    b"Wall time,Step,Value\n1700000000.5,3,0.25\n",
    b'_runtime,_timestamp,"lo,ss",acc,_step\n7,1700000000.5,0.25,,3\n',
    b'{"step": 1, "loss": 0.5, "_timestamp": 1700000000.5, "note": "x"}\n{"iter": 2, "loss": NaN, "lr": null}\n{"st',
    b"""{"run": {"id": "a", "name": "a", "attempt_list": [{"attempt": 1, "state": "failed", "started": 1.5}]}, "series":
        [{"attempt": 1, "rank": 2, "key": "loss", "points": [[1, 1.5, 2.5], [2, 2e0, "nan"]]}], "other": {"a": []}}""",
)

tables: Any = Tables()


def imported(data: bytes) -> ImportResult:
    """Import a file into the tables."""
    return import_run(tables, open_run_file(io.BytesIO(data), "run-tag-loss.csv", begin=BEGIN))


def exported(run: str, form: Format) -> bytes:
    """Return an export of a run."""
    return b"".join(export(tables, run, form))


def check_line(text: str) -> None:
    """Check that a text is one line."""
    assert len(text.splitlines()) == 1, text


def check(data: bytes) -> None:
    """Import a file; export what it stored, import that, and compare the exports."""
    with tables.transaction():
        try:
            result = imported(data)
        except REFUSALS as error:
            check_line(str(error))
            return
        for note in result.notes:
            check_line(note)
        assert count(tables, result.run) == result.samples
        exports = {form: exported(result.run, form) for form in FORMATS if result.samples}
    for form, text in exports.items():
        with tables.transaction():
            again = imported(text)
            assert again.samples == result.samples
            assert exported(again.run, form) == text


def seeds() -> list[bytes]:
    """Return files of other tools, and the exports of a run."""
    records: list[Record] = [
        opened("a", name="the run", config={"lr": 0.1, "n": None, "ü": ["x", True]}, tags=("t",), world=2),
        ingested("a", [(1, round(BEGIN * 1e6), {"loss": 2.5, "=1": float("nan")}), (2, round(BEGIN * 1e6), {"loss": 1.0})]),
        opened("a", rank=1, world=2),
        ingested("a", [(-1, 5, {"loss": -0.0, 'a,"\n': float("inf")})], rank=1),
        Event("a", 0, BEGIN, "checkpoint", 0, 1, {"path": "x"}),
        Alert("LossSpike", "warning", BEGIN, "a", {"key": "loss"}, "summary", "description", None, {"values": [1.0]}),
        finished("a", state="failed", cause="ValueError"),
    ]  # fmt: skip
    with tables.transaction():
        tables.accept(Batch("test", records=records))
        return [*FILES, *(exported("a", form) for form in FORMATS)]


def test_any_file_is_refused_with_a_line_or_stored(fuzz: Callable[..., None]) -> None:
    def short() -> None:
        for data in mutants(seeds(), 250):
            check(data)

    fuzz(short, seeds())
